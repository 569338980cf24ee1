// Memory for packed weights, from the system's pages.
#include "cpu/memory.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "core/status.hpp"

namespace pamx::cpu {

namespace {

constexpr int64_t kHugePage = 2 << 20;

[[noreturn]] void refuse(const std::string& what) {
  throw Error(PAMX_FAILED, what + ": " + std::strerror(errno));
}

}  // namespace

std::shared_ptr<Memory> Memory::allocate(int64_t bytes) {
  require(bytes > 0, "cannot allocate " + std::to_string(bytes) + " bytes");
  // The kernel aligns a mapping of whole huge pages by itself; a smaller one keeps small pages.
  const int64_t unit = bytes >= kHugePage ? kHugePage : 4096;
  require(bytes <= INT64_MAX - unit, "cannot allocate " + std::to_string(bytes) + " bytes");
  const int64_t whole = (bytes + unit - 1) / unit * unit;
  void* data = mmap(nullptr, static_cast<size_t>(whole), PROT_READ | PROT_WRITE,
                    MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (data == MAP_FAILED) refuse("no memory for " + std::to_string(bytes) + " bytes of weights");
#if defined(MADV_HUGEPAGE)
  madvise(data, static_cast<size_t>(whole), MADV_HUGEPAGE);  // advice: refusal costs only speed
#endif
  return std::shared_ptr<Memory>(new Memory(static_cast<uint8_t*>(data), bytes, whole));
}

std::shared_ptr<Memory> Memory::map(const char* path, int64_t bytes) {
  require(path != nullptr && bytes > 0, "a file to map needs a path and a size");
  const int file = open(path, O_RDONLY | O_CLOEXEC);
  if (file < 0) refuse(std::string("cannot open ") + path);
  struct stat info{};
  const bool known = fstat(file, &info) == 0;
  void* data = MAP_FAILED;
  if (known && info.st_size == bytes) {
    data = mmap(nullptr, static_cast<size_t>(bytes), PROT_READ, MAP_SHARED, file, 0);
  }
  const int error = errno;
  close(file);
  errno = error;
  if (known && info.st_size != bytes) {
    throw Error(PAMX_FAILED, std::string(path) + " is " + std::to_string(info.st_size) +
                                 " bytes long instead of " + std::to_string(bytes));
  }
  if (data == MAP_FAILED) refuse(std::string("cannot map ") + path);
  return std::shared_ptr<Memory>(new Memory(static_cast<uint8_t*>(data), bytes, bytes));
}

Memory::~Memory() { munmap(data_, static_cast<size_t>(mapped_)); }

}  // namespace pamx::cpu

extern "C" int pamx_memory_allocate(int64_t bytes, pamx_memory** out) {
  return pamx::guarded([&] {
    pamx::require(out != nullptr, "the place for the new memory is null");
    *out = nullptr;
    *out = new pamx_memory{pamx::cpu::Memory::allocate(bytes)};
  });
}

extern "C" int pamx_memory_map(const char* path, int64_t bytes, pamx_memory** out) {
  return pamx::guarded([&] {
    pamx::require(out != nullptr, "the place for the new memory is null");
    *out = nullptr;
    *out = new pamx_memory{pamx::cpu::Memory::map(path, bytes)};
  });
}

extern "C" void* pamx_memory_data(const pamx_memory* memory) {
  return memory ? memory->memory->data() : nullptr;
}
extern "C" int64_t pamx_memory_bytes(const pamx_memory* memory) {
  return memory ? memory->memory->bytes() : 0;
}
extern "C" void pamx_memory_free(pamx_memory* memory) { delete memory; }
