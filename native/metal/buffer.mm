// Allocating shared memory; the C interface of buffers.
#include "metal/buffer.hpp"

#include <algorithm>
#include <string>

#include "metal/gpu.hpp"

namespace pamx::metal {

Object<id<MTLBuffer>> shared_memory(id<MTLDevice> device, uint64_t bytes) {
  bytes = std::max<uint64_t>(bytes, 1);
  if (const uint64_t most = [device maxBufferLength]; bytes > most) {
    throw Error(PAMX_FAILED, "a Metal buffer of " + std::to_string(bytes) +
                                 " bytes was asked for; the largest here is " +
                                 std::to_string(most));
  }
  auto buffer =
      Object<id<MTLBuffer>>::adopt([device newBufferWithLength:bytes
                                                       options:MTLResourceStorageModeShared]);
  if (!buffer) {
    throw Error(PAMX_FAILED, "Metal has no " + std::to_string(bytes) + " bytes of memory left");
  }
  return buffer;
}

}  // namespace pamx::metal

extern "C" int pamx_metal_buffer_create(int64_t bytes, pamx_metal_buffer** out) {
  @autoreleasepool {
    return pamx::guarded([&] {
      pamx::require(out != nullptr, "the place for the new buffer is null");
      *out = nullptr;
      pamx::require(bytes >= 1, "a buffer needs at least 1 byte, not " + std::to_string(bytes));
      const auto device = (__bridge id<MTLDevice>)pamx::metal::system_gpu().device;
      *out =
          new pamx_metal_buffer{pamx::metal::shared_memory(device, static_cast<uint64_t>(bytes))};
    });
  }
}

extern "C" void* pamx_metal_buffer_data(const pamx_metal_buffer* buffer) {
  @autoreleasepool {  // the compiler keeps a buffer for the caller of `contents`
    return buffer ? buffer->data() : nullptr;
  }
}

extern "C" int64_t pamx_metal_buffer_bytes(const pamx_metal_buffer* buffer) {
  @autoreleasepool {
    return buffer ? static_cast<int64_t>(buffer->bytes()) : 0;
  }
}

extern "C" void pamx_metal_buffer_free(pamx_metal_buffer* buffer) {
  @autoreleasepool {
    delete buffer;
  }
}
