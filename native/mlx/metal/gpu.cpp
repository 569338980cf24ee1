// The operations on MLX arrays, on MLX's Metal device: encoded behind MLX's own kernels, never
// waited for.
#include "mlx/gpu.hpp"

#include <optional>

#include "metal/pages.hpp"
#include "mlx/memory.hpp"
#include "mlx/metal/encoder.hpp"
#include "mlx/metal/step.hpp"
#include "plan/gpu_record.hpp"

namespace pamx::gpu {

namespace {

metal::Gpu& gpu_of(mx::Stream stream) {
  return metal::gpu_of(mx::metal::device(stream.device).mtl_device());
}

metal::Buffer buffer(const mx::array& array) { return {const_cast<mx::array*>(&array), 0}; }

// Rows of [batch, heads, length, dim] with batch or length 1: the other one counts the tokens.
metal::StridedRows rows_of(const mx::array& array, const char* name) {
  if (array.strides(3) != 1 && array.shape(3) > 1) {
    throw Error(PAMX_UNSUPPORTED,
                std::string(name) + ": the elements of a head do not lie side by side");
  }
  const int token_axis = array.shape(0) > 1 ? 0 : 2;
  return {buffer(array), static_cast<uint64_t>(array.strides(token_axis)),
          static_cast<uint64_t>(array.strides(1))};
}

}  // namespace

void check_stream(mx::Stream stream) {
  if (stream.device == mx::Device::gpu) gpu_of(stream);
}

std::shared_ptr<const Attention> prepare(mx::Stream stream, const Batch& batch,
                                         const AttentionRequest& request) {
  auto attention = step_of(batch).attention(gpu_of(stream), batch, request);
  plan::record_queued(attention->ready.plan);
  return attention;
}

void run(mx::Stream stream, const Attention& attention, const AttentionArrays& arrays) {
  MlxEncoder encoder(stream);
  const StepArrays& step = *attention.arrays;
  for (const mx::array* shared : {&step.block_tables, &step.context_lens, &step.query_starts,
                                  &step.slots, &attention.work_rows}) {
    encoder.add_temporary(*shared);
  }
  metal::AttentionCall call;
  call.shape = attention.shape;
  call.tokens = step.tokens;
  call.max_blocks = step.max_blocks;
  call.scale = arrays.scale;
  call.softcap = arrays.softcap;
  call.queries = rows_of(*arrays.queries, "queries");
  if (arrays.keys) {
    call.keys = rows_of(*arrays.keys, "keys");
    call.values = rows_of(*arrays.values, "values");
  }
  call.key_pool = buffer(*arrays.key_pool);
  call.value_pool = buffer(*arrays.value_pool);
  if (arrays.sinks) call.sinks = buffer(*arrays.sinks);
  call.out = buffer(*arrays.out);
  call.step = {buffer(step.block_tables), buffer(step.context_lens), buffer(step.query_starts),
               buffer(step.slots), buffer(attention.work_rows)};
  // MLX keeps the memory until the command buffer has run, then reuses it.
  const auto bytes = static_cast<size_t>(attention.ready.plan.scratch_bytes);
  std::optional<mx::array> scratch;
  if (bytes) {
    scratch.emplace(allocate(bytes), mx::Shape{static_cast<int>(bytes)}, mx::uint8);
    encoder.add_temporary(*scratch);
    call.scratch = buffer(*scratch);
  }
  metal::encode_attention(encoder, call, attention.ready);
  if (!arrays.keys) {
    // Whoever writes a buffer later waits for the encoder that last wrote it, not for its readers.
    encoder.count_as_written(*arrays.key_pool);
    encoder.count_as_written(*arrays.value_pool);
  }
  plan::count_run(attention.ready.plan);
}

void copy_blocks(mx::Stream stream, const std::vector<int32_t>& sources,
                 const std::vector<int32_t>& targets, mx::array& pool) {
  std::vector<metal::BlockCopy> copies;
  for (size_t i = 0; i < sources.size(); ++i) copies.push_back({sources[i], targets[i]});
  MlxEncoder encoder(stream);
  const size_t block = pool.nbytes() / static_cast<size_t>(pool.shape(0));
  metal::encode_copies(encoder, gpu_of(stream).library, buffer(pool), static_cast<uint32_t>(block),
                       copies);
}

}  // namespace pamx::gpu
