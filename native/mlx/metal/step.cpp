// Making a step's arrays and plans once.
#include "mlx/metal/step.hpp"

#include "core/slots.hpp"
#include "mlx/rows.hpp"

namespace pamx::gpu {

namespace {

template <class T>
mx::array array_of(const std::vector<T>& values, mx::Dtype dtype) {
  return mx::array(values.data(), {static_cast<int>(values.size())}, dtype);
}

plan::GpuAttention shape_of(const AttentionRequest& request, const Batch& batch) {
  plan::GpuAttention shape;
  shape.geometry = {request.heads, request.kv_heads, request.k_dim, request.v_dim, request.window};
  shape.softcap = request.softcap;
  shape.sinks = request.sinks;
  shape.dtype = cpu_dtype(request.dtype);
  shape.pool_dtype = cpu_dtype(request.pool_dtype);
  shape.block_size = batch.block_size;
  return shape;
}

plan::GpuPlan plan_of(const metal::Gpu& gpu, const Batch& batch, const plan::GpuAttention& shape,
                      const plan::Overrides& overrides) {
  const plan::AttentionSequences sequences{batch.num_sequences(), batch.query_starts.data(),
                                           batch.context_lens.data()};
  return plan::plan_gpu_attention(shape, sequences, gpu.machine, overrides);
}

mx::array rows_array(const std::vector<WorkRow>& rows) {
  static_assert(sizeof(WorkRow) == 3 * sizeof(uint32_t));
  return mx::array(reinterpret_cast<const uint32_t*>(rows.data()),
                   {static_cast<int>(rows.size()), 3}, mx::uint32);
}

bool same(const plan::Overrides& a, const plan::Overrides& b) {
  return a.disable_gqa_decode == b.disable_gqa_decode && a.disable_nax == b.disable_nax &&
         a.force_partition == b.force_partition;
}

}  // namespace

StepArrays::StepArrays(const Batch& batch)
    : tokens(batch.num_tokens()),
      max_blocks(batch.max_blocks),
      block_tables(array_of(batch.block_tables, mx::int32)),
      context_lens(array_of(batch.context_lens, mx::int32)),
      query_starts(array_of(batch.query_starts, mx::int32)),
      slots(array_of(slots_of(batch), mx::int64)) {}

Attention::Attention(metal::Gpu& gpu, const Batch& batch, std::shared_ptr<const StepArrays> shared,
                     const AttentionRequest& wanted, const plan::Overrides& forced)
    : request(wanted),
      overrides(forced),
      shape(shape_of(request, batch)),
      ready(metal::ready(gpu.library, shape, batch.num_tokens(), request.writes,
                         plan_of(gpu, batch, shape, forced))),
      arrays(std::move(shared)),
      work_rows(rows_array(ready.work_rows())) {}

std::shared_ptr<const Attention> Step::attention(metal::Gpu& gpu, const Batch& batch,
                                                 const AttentionRequest& request) {
  const plan::Overrides overrides = plan::overrides();
  std::lock_guard lock(mutex_);
  for (const auto& known : planned_) {
    if (known->request == request && same(known->overrides, overrides)) return known;
  }
  planned_.push_back(std::make_shared<const Attention>(gpu, batch, arrays_, request, overrides));
  return planned_.back();
}

Step& step_of(const Batch& batch) {
  return *batch.on_gpu.get<std::unique_ptr<Step>>([&] { return std::make_unique<Step>(batch); });
}

}  // namespace pamx::gpu
