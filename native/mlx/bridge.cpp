// Reading nanobind's instance layout, after proving on a known array that it is what we think.
//
// nanobind (2.x, src/nb_internals.h) keeps, right after the Python object header, the offset of
// the C++ value and a byte of flags: two bits of state (2 = ready) and one that says that the
// value lies inside the object. libmlx exports no way to unwrap an array, and a second nanobind
// module would have to be built for each Python version; so we read those eight bytes, and
// pamx_bridge_probe() guards the assumption once at load.
#include "mlx/bridge.hpp"

#if defined(__APPLE__)
#include <mach/mach.h>
#else
#include <sys/uio.h>
#include <unistd.h>
#endif

#include <atomic>
#include <cstring>

namespace pamx {

namespace {

struct InstanceHeader {
  int32_t offset;
  uint8_t flags;
};
constexpr uint8_t kStateMask = 3, kReady = 2, kDirect = 4;

std::atomic<int32_t> object_size{0};  // 0: not configured
std::atomic<int32_t> array_size{0};

InstanceHeader header_of(const char* object) {
  InstanceHeader header;
  std::memcpy(&header.offset, object + object_size, sizeof header.offset);
  std::memcpy(&header.flags, object + object_size + 4, sizeof header.flags);
  return header;
}

// Copies memory that may not be mapped; false instead of a fault.
bool safe_read(const void* from, void* to, size_t bytes) {
#if defined(__APPLE__)
  vm_size_t got = 0;
  return vm_read_overwrite(mach_task_self(), reinterpret_cast<vm_address_t>(from), bytes,
                           reinterpret_cast<vm_address_t>(to), &got) == KERN_SUCCESS &&
         got == bytes;
#else
  iovec local{to, bytes};
  iovec remote{const_cast<void*>(from), bytes};
  return process_vm_readv(getpid(), &local, 1, &remote, 1, 0) == static_cast<ssize_t>(bytes);
#endif
}

void check(bool condition, const char* what) {
  if (!condition)
    throw Error(PAMX_UNSUPPORTED,
                std::string("this mlx wheel's arrays are laid out in an unknown way: ") + what);
}

void probe(pamx_object object, uintptr_t data, int32_t ndim, const int32_t* shape,
           int32_t itemsize) {
  const auto* base = reinterpret_cast<const char*>(object);
  char raw[sizeof(InstanceHeader)];
  check(safe_read(base + object_size, raw, sizeof raw), "the object is not readable");
  const InstanceHeader header = header_of(base);
  check((header.flags & kStateMask) == kReady, "the instance is not marked ready");
  check(header.flags & kDirect, "the value is not inside the object");
  check(header.offset >= object_size + 8 &&
            header.offset + static_cast<int32_t>(sizeof(mlx::core::array)) <= array_size,
        "the value's offset is outside the object");
  uintptr_t value[2];  // mlx::core::array begins with a reference to its description
  check(safe_read(base + header.offset, value, sizeof value), "the value is not readable");
  char description[128];
  check(safe_read(reinterpret_cast<const void*>(value[0]), description, sizeof description),
        "the array's description is not readable");
  const auto& array = array_of(object, "probe");
  check(static_cast<int32_t>(array.ndim()) == ndim, "the number of dimensions differs");
  for (int32_t i = 0; i < ndim; ++i) check(array.shape(i) == shape[i], "the shape differs");
  check(static_cast<int32_t>(array.itemsize()) == itemsize, "the item size differs");
  check(reinterpret_cast<uintptr_t>(array.data<char>()) == data, "the data address differs");
}

}  // namespace

mlx::core::array& array_of(pamx_object object, const char* name) {
  require(object_size > 0, "pamx_bridge_configure has not been called");
  require(object != 0, [&] { return std::string(name) + " is null"; });
  auto* base = reinterpret_cast<char*>(object);
  const InstanceHeader header = header_of(base);
  require((header.flags & (kStateMask | kDirect)) == (kReady | kDirect) &&
              header.offset > object_size && header.offset < array_size,
          [&] { return std::string(name) + " is not an mlx.core.array"; });
  return *reinterpret_cast<mlx::core::array*>(base + header.offset);
}

}  // namespace pamx

extern "C" int pamx_bridge_configure(int32_t object_size, int32_t array_size) {
  return pamx::guarded([&] {
    pamx::require(
        object_size >= 16 && object_size <= 64 && array_size > object_size + 8 && array_size <= 256,
        "implausible object sizes: " + std::to_string(object_size) + " and " +
            std::to_string(array_size) + " bytes");
    pamx::array_size = array_size;
    pamx::object_size = object_size;
  });
}

extern "C" int pamx_bridge_probe(pamx_object object, uintptr_t data, int32_t ndim,
                                 const int32_t* shape, int32_t itemsize) {
  return pamx::guarded([&] {
    pamx::require(pamx::object_size > 0, "pamx_bridge_configure has not been called");
    pamx::require(object && shape && ndim > 0, "object and shape must not be null");
    pamx::probe(object, data, ndim, shape, itemsize);
  });
}
