// Metal's own compute encoder. Dispatches are concurrent, as MLX's are, so that a barrier that is
// missing shows on both.
#include "metal/plain_encoder.hpp"

#include "core/status.hpp"

namespace pamx::metal {

namespace {

MTLSize size_of(const std::array<uint32_t, 3>& size) {
  return MTLSizeMake(size[0], size[1], size[2]);
}

}  // namespace

PlainEncoder::PlainEncoder(id<MTLCommandBuffer> commands)
    : encoder_(Object<id<MTLComputeCommandEncoder>>::share(
          [commands computeCommandEncoderWithDispatchType:MTLDispatchTypeConcurrent])) {
  if (!encoder_) throw Error(PAMX_FAILED, "Metal gives no compute encoder");
}

PlainEncoder::~PlainEncoder() { end(); }

void PlainEncoder::end() {
  if (!ended_) [encoder_.get() endEncoding];
  ended_ = true;
}

void PlainEncoder::set_pipeline(const Pipeline& pipeline) {
  [encoder_.get() setComputePipelineState:(__bridge id<MTLComputePipelineState>)pipeline.state];
}

void PlainEncoder::set_input(uint32_t index, const Buffer& buffer) {
  [encoder_.get() setBuffer:(__bridge id<MTLBuffer>)buffer.object
                     offset:buffer.offset
                    atIndex:index];
}

void PlainEncoder::set_output(uint32_t index, const Buffer& buffer) { set_input(index, buffer); }

void PlainEncoder::set_bytes(uint32_t index, const void* bytes, size_t size) {
  [encoder_.get() setBytes:bytes length:size atIndex:index];
}

void PlainEncoder::set_threadgroup_memory(uint32_t bytes) {
  [encoder_.get() setThreadgroupMemoryLength:bytes atIndex:0];
}

void PlainEncoder::dispatch(const std::array<uint32_t, 3>& grid,
                            const std::array<uint32_t, 3>& threadgroup) {
  [encoder_.get() dispatchThreadgroups:size_of(grid) threadsPerThreadgroup:size_of(threadgroup)];
}

void PlainEncoder::barrier() { [encoder_.get() memoryBarrierWithScope:MTLBarrierScopeBuffers]; }

}  // namespace pamx::metal
