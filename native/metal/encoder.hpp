// What encoding a kernel needs, whoever owns the command buffer: MLX or ourselves.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "metal/library.hpp"

namespace pamx::metal {

// Memory that a kernel reads or writes. `object` is what the encoder at hand binds: an
// id<MTLBuffer> for the plain one, an mlx::core::array for MLX's.
struct Buffer {
  void* object = nullptr;
  uint64_t offset = 0;  // bytes from the object's own start

  explicit operator bool() const { return object != nullptr; }
};

class KernelEncoder {
 public:
  virtual ~KernelEncoder() = default;

  virtual void set_pipeline(const Pipeline& pipeline) = 0;
  virtual void set_input(uint32_t index, const Buffer& buffer) = 0;
  // Written, and perhaps read too.
  virtual void set_output(uint32_t index, const Buffer& buffer) = 0;
  // At most 4,096 bytes, copied.
  virtual void set_bytes(uint32_t index, const void* bytes, size_t size) = 0;
  virtual void set_threadgroup_memory(uint32_t bytes) = 0;
  // Grid in threadgroups, threadgroup in threads.
  virtual void dispatch(const std::array<uint32_t, 3>& grid,
                        const std::array<uint32_t, 3>& threadgroup) = 0;
  // Dispatches after it see what those before it wrote; without it they may run side by side.
  virtual void barrier() = 0;
};

}  // namespace pamx::metal
