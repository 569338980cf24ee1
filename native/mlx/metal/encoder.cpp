// Arrays go in through MLX's calls, which note who reads and who writes what.
#include "mlx/metal/encoder.hpp"

namespace pamx::gpu {

namespace mx = mlx::core;

namespace {

mx::array& array_of(const metal::Buffer& buffer) { return *static_cast<mx::array*>(buffer.object); }

}  // namespace

MlxEncoder::MlxEncoder(mx::Stream stream) : encoder_(mx::metal::get_command_encoder(stream)) {}

void MlxEncoder::set_pipeline(const metal::Pipeline& pipeline) {
  encoder_.set_compute_pipeline_state(static_cast<MTL::ComputePipelineState*>(pipeline.state));
}

void MlxEncoder::set_input(uint32_t index, const metal::Buffer& buffer) {
  encoder_.set_input_array(array_of(buffer), static_cast<int>(index),
                           static_cast<int64_t>(buffer.offset));
}

void MlxEncoder::set_output(uint32_t index, const metal::Buffer& buffer) {
  encoder_.set_output_array(array_of(buffer), static_cast<int>(index),
                            static_cast<int64_t>(buffer.offset));
}

void MlxEncoder::set_bytes(uint32_t index, const void* bytes, size_t size) {
  encoder_.set_bytes(static_cast<const char*>(bytes), static_cast<int>(size),
                     static_cast<int>(index));
}

void MlxEncoder::set_threadgroup_memory(uint32_t bytes) {
  encoder_.set_threadgroup_memory_length(bytes, 0);
}

void MlxEncoder::dispatch(const std::array<uint32_t, 3>& grid,
                          const std::array<uint32_t, 3>& threadgroup) {
  encoder_.dispatch_threadgroups(MTL::Size(grid[0], grid[1], grid[2]),
                                 MTL::Size(threadgroup[0], threadgroup[1], threadgroup[2]));
}

// MLX puts a barrier before a dispatch that binds what one since the last barrier wrote, or writes
// what one bound.
void MlxEncoder::barrier() {}

}  // namespace pamx::gpu
