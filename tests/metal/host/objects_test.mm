// Object's reference counts and Scratch's cap, against the software device.
#include <stdexcept>
#include <string>

#include "core/status.hpp"
#include "metal/device.hpp"
#include "metal/object.hpp"
#include "metal/scratch.hpp"

extern "C" int64_t softmetal_objects_alive(void);

using pamx::metal::Object;
using pamx::metal::Scratch;

#define CHECK(condition)                                                              \
  do {                                                                                \
    if (!(condition)) {                                                               \
      throw std::runtime_error("line " + std::to_string(__LINE__) + ": " #condition); \
    }                                                                                 \
  } while (0)

using Buffer = Object<id<MTLBuffer>>;

static Buffer new_buffer(id<MTLDevice> device) {
  return Buffer::adopt([device newBufferWithLength:64 options:MTLResourceStorageModeShared]);
}

static void test_objects(id<MTLDevice> device) {
  const int64_t before = softmetal_objects_alive();
  @autoreleasepool {
    Buffer one = new_buffer(device);
    CHECK(softmetal_objects_alive() == before + 1);
    Buffer same = one, moved = std::move(one);
    CHECK(!one && same.get() == moved.get());
    Buffer& itself = moved;
    moved = itself;
    Buffer other = new_buffer(device);
    other = same;  // the other one goes
    Buffer shared = Buffer::share(same.get());
    same = Buffer();
    moved = Buffer();
    CHECK(shared && [shared.get() length] == 64);
  }
  CHECK(softmetal_objects_alive() == before);
}

static void test_scratch(const Object<id<MTLDevice>>& device) {
  const int64_t before = softmetal_objects_alive();
  @autoreleasepool {
    Scratch scratch(device, 1 << 20);
    void* first = nullptr;
    {
      const auto lease = scratch.take(100000);
      first = lease.handle();
      const auto more = scratch.take(100);
      CHECK(more.handle() != first);
      CHECK(scratch.held_bytes() == (128 << 10) + (64 << 10));
    }
    CHECK(scratch.take(90000).handle() == first);    // kept and lent again
    CHECK(scratch.take(1 << 20).handle() != first);  // the kept ones make room
    CHECK(scratch.held_bytes() == 1 << 20);
    const auto all = scratch.take(900000);
    bool refused = false;
    try {
      scratch.take(200000);
    } catch (const pamx::Error& error) {
      refused = error.status() == PAMX_UNSUPPORTED &&
                std::string(error.what()).find("200000 bytes of partial results") == 0;
    }
    CHECK(refused);
    CHECK(scratch.held_bytes() == 1 << 20);
  }
  CHECK(softmetal_objects_alive() == before);
}

// Null, or what was wrong.
extern "C" __attribute__((visibility("default"))) const char* objects_test(void) {
  static std::string wrong;
  try {
    @autoreleasepool {
      const auto device = pamx::metal::default_device();
      test_objects(device.get());
      test_scratch(device);
    }
    return nullptr;
  } catch (const std::exception& error) {
    wrong = error.what();
    return wrong.c_str();
  }
}
