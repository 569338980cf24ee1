// Memory that CPU and GPU share, behind the C interface's handle.
#pragma once

#import <Metal/Metal.h>

#include <cstring>

#include "core/status.hpp"
#include "metal/object.hpp"

struct pamx_metal_buffer {
  pamx::metal::Object<id<MTLBuffer>> buffer;

  char* data() const { return static_cast<char*>([buffer.get() contents]); }
  uint64_t bytes() const { return [buffer.get() length]; }
};

namespace pamx::metal {

// Shared memory of at least one byte, for Metal has none of none.
// Throws Error(PAMX_FAILED): there is no such memory.
Object<id<MTLBuffer>> shared_memory(id<MTLDevice> device, uint64_t bytes);

// The same, with these contents.
template <class T>
Object<id<MTLBuffer>> shared_copy(id<MTLDevice> device, const T* data, size_t count) {
  auto buffer = shared_memory(device, count * sizeof(T));
  if (count) std::memcpy([buffer.get() contents], data, count * sizeof(T));
  return buffer;
}

}  // namespace pamx::metal
