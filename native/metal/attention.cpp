// Binding the buffers of shaders/params.h, dispatch by dispatch.
#include "metal/attention.hpp"

namespace pamx::metal {

namespace {

void dispatch(KernelEncoder& encoder, const plan::Launch& launch) {
  if (launch.threadgroup_bytes) encoder.set_threadgroup_memory(launch.threadgroup_bytes);
  encoder.dispatch(launch.grid, launch.threadgroup);
}

plan::Launch write_launch(const plan::GpuAttention& call, int32_t tokens) {
  plan::LaunchShape shape;
  shape.kernel = plan::Kernel::kv_write;
  shape.dtype = call.dtype;
  shape.pool_dtype = call.pool_dtype;
  shape.kv_heads = call.geometry.kv_heads;
  shape.k_dim = call.geometry.k_dim;
  shape.v_dim = call.geometry.v_dim;
  shape.block_size = call.block_size;
  shape.tokens = tokens;
  return plan::launch_of(shape);
}

void encode_write(KernelEncoder& encoder, const AttentionCall& call, const ReadyPlan& ready) {
  const plan::AttentionGeometry& geometry = call.shape.geometry;
  KvWriteParams params{};
  params.tokens = static_cast<uint32_t>(call.tokens);
  params.kv_heads = static_cast<uint32_t>(geometry.kv_heads);
  params.k_dim = static_cast<uint32_t>(geometry.k_dim);
  params.v_dim = static_cast<uint32_t>(geometry.v_dim);
  params.key_token_stride = call.keys.token_stride;
  params.key_head_stride = call.keys.head_stride;
  params.value_token_stride = call.values.token_stride;
  params.value_head_stride = call.values.head_stride;

  encoder.set_pipeline(ready.write_pipeline);
  encoder.set_input(kNewKeys, call.keys.buffer);
  encoder.set_input(kNewValues, call.values.buffer);
  encoder.set_output(kWriteKeyPool, call.key_pool);
  encoder.set_output(kWriteValuePool, call.value_pool);
  encoder.set_input(kSlotMapping, call.step.slots);
  encoder.set_bytes(kWriteParams, &params, sizeof params);
  dispatch(encoder, ready.write);
}

AttentionParams params_of(const AttentionCall& call, const plan::LaunchShape& shape) {
  const plan::AttentionGeometry& geometry = call.shape.geometry;
  AttentionParams params{};
  params.heads = static_cast<uint32_t>(geometry.heads);
  params.kv_heads = static_cast<uint32_t>(geometry.kv_heads);
  params.k_dim = static_cast<uint32_t>(geometry.k_dim);
  params.v_dim = static_cast<uint32_t>(geometry.v_dim);
  params.block_size = static_cast<uint32_t>(call.shape.block_size);
  params.max_blocks = static_cast<uint32_t>(call.max_blocks);
  params.rows = static_cast<uint32_t>(shape.rows);
  params.partition = static_cast<uint32_t>(shape.partition);
  params.num_partitions = static_cast<uint32_t>(shape.num_partitions);
  params.window = static_cast<uint32_t>(geometry.window);
  params.scale_log2 = call.scale * limits::LOG2_E;
  params.softcap_log2 = call.softcap * limits::LOG2_E;
  params.query_token_stride = call.queries.token_stride;
  params.query_head_stride = call.queries.head_stride;
  return params;
}

Buffer from(const Buffer& buffer, int64_t bytes) {
  return {buffer.object, buffer.offset + static_cast<uint64_t>(bytes)};
}

bool reduces(const plan::GpuDispatch& dispatch) {
  return dispatch.shape.kernel == plan::Kernel::split_kv_reduce;
}

void encode_attend(KernelEncoder& encoder, const AttentionCall& call,
                   const plan::GpuDispatch& planned) {
  encoder.set_input(kQueries, call.queries.buffer);
  encoder.set_input(kKeyPool, call.key_pool);
  encoder.set_input(kValuePool, call.value_pool);
  encoder.set_input(kBlockTables, call.step.block_tables);
  encoder.set_input(kContextLens, call.step.context_lens);
  encoder.set_input(kQueryStarts, call.step.query_starts);
  if (planned.partial_out < 0) {
    encoder.set_output(kOut, call.out);
  } else {
    encoder.set_output(kPartialOut, from(call.scratch, planned.partial_out));
    encoder.set_output(kPartialStats, from(call.scratch, planned.partial_stats));
  }
}

void encode_reduce(KernelEncoder& encoder, const AttentionCall& call,
                   const plan::GpuDispatch& planned) {
  encoder.set_input(kPartialOut, from(call.scratch, planned.partial_out));
  encoder.set_input(kPartialStats, from(call.scratch, planned.partial_stats));
  encoder.set_output(kOut, call.out);
}

}  // namespace

std::vector<WorkRow> ReadyPlan::work_rows() const {
  std::vector<WorkRow> rows;
  for (const auto& planned : plan.dispatches) {
    rows.insert(rows.end(), planned.rows.begin(), planned.rows.end());
  }
  return rows;
}

ReadyPlan ready(Library& library, const plan::GpuAttention& shape, int32_t tokens, bool writes,
                plan::GpuPlan plan) {
  ReadyPlan made;
  made.plan = std::move(plan);
  for (const auto& planned : made.plan.dispatches) {
    made.pipelines.push_back(library.pipeline(planned.launch));
  }
  if (writes) {
    made.write = write_launch(shape, tokens);
    made.write_pipeline = library.pipeline(made.write);
  }
  return made;
}

void encode_attention(KernelEncoder& encoder, const AttentionCall& call, const ReadyPlan& ready) {
  if (call.keys.buffer) {
    encode_write(encoder, call, ready);
    encoder.barrier();
  }
  int64_t first = 0, next = 0;  // work rows
  for (size_t i = 0; i < ready.pipelines.size(); ++i) {
    const plan::GpuDispatch& planned = ready.plan.dispatches[i];
    if (reduces(planned)) {
      encoder.barrier();  // its rows are those of the dispatch before it
    } else {
      first = next;
    }
    next += static_cast<int64_t>(planned.rows.size());
    encoder.set_pipeline(ready.pipelines[i]);
    const AttentionParams params = params_of(call, planned.shape);
    encoder.set_bytes(kParams, &params, sizeof params);
    encoder.set_input(kWorkRows,
                      from(call.step.work_rows, first * static_cast<int64_t>(sizeof(WorkRow))));
    if (call.sinks) encoder.set_input(kSinks, call.sinks);
    reduces(planned) ? encode_reduce(encoder, call, planned)
                     : encode_attend(encoder, call, planned);
    dispatch(encoder, planned.launch);
  }
}

}  // namespace pamx::metal
