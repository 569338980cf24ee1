// Memory for packed weights: anonymous, or a file that is mapped.
#pragma once

#include <cstdint>
#include <memory>

namespace pamx::cpu {

// Freed with its last owner: whoever computes with the weights holds a share of it.
class Memory {
 public:
  // Zeroed, page-aligned, in huge pages where the system has them.
  static std::shared_ptr<Memory> allocate(int64_t bytes);
  // A read-only mapping of a file, which must have exactly this size.
  static std::shared_ptr<Memory> map(const char* path, int64_t bytes);
  ~Memory();
  Memory(const Memory&) = delete;
  Memory& operator=(const Memory&) = delete;

  uint8_t* data() const { return data_; }
  int64_t bytes() const { return bytes_; }

 private:
  Memory(uint8_t* data, int64_t bytes, int64_t mapped)
      : data_(data), bytes_(bytes), mapped_(mapped) {}

  uint8_t* data_;
  int64_t bytes_;
  int64_t mapped_;
};

}  // namespace pamx::cpu

// The handle that C holds; matrices keep their own share.
struct pamx_memory {
  std::shared_ptr<pamx::cpu::Memory> memory;
};
