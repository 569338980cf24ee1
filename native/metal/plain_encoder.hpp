// KernelEncoder on a command buffer of our own.
#pragma once

#import <Metal/Metal.h>

#include "metal/encoder.hpp"
#include "metal/object.hpp"

namespace pamx::metal {

class PlainEncoder : public KernelEncoder {
 public:
  explicit PlainEncoder(id<MTLCommandBuffer> commands);
  // Ends encoding, also when an error leaves it half done: Metal aborts otherwise.
  ~PlainEncoder() override;
  PlainEncoder(const PlainEncoder&) = delete;
  PlainEncoder& operator=(const PlainEncoder&) = delete;

  void end();

  void set_pipeline(const Pipeline& pipeline) override;
  void set_input(uint32_t index, const Buffer& buffer) override;
  void set_output(uint32_t index, const Buffer& buffer) override;
  void set_bytes(uint32_t index, const void* bytes, size_t size) override;
  void set_threadgroup_memory(uint32_t bytes) override;
  void dispatch(const std::array<uint32_t, 3>& grid,
                const std::array<uint32_t, 3>& threadgroup) override;
  void barrier() override;

 private:
  Object<id<MTLComputeCommandEncoder>> encoder_;
  bool ended_ = false;
};

}  // namespace pamx::metal
