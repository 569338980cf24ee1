// Memory for buffers, between two areas that no kernel can touch.
#include <sys/mman.h>

#include <cstring>
#include <map>

#include "launch.hpp"

namespace softmetal {
namespace {

constexpr unsigned char kFill = 0xff;  // NaN, or an index far away, to whoever reads it

struct Block {
  char* mapping;
  char* body;  // what lies between the two areas
  size_t body_bytes;
  size_t bytes;
};

std::map<void*, Block>& blocks() {
  static std::map<void*, Block> all;
  return all;
}

}  // namespace
}  // namespace softmetal

using namespace softmetal;

extern "C" {

void* softmetal_guarded_new(size_t bytes, int at_start) {
  const size_t body_bytes = (bytes + kPage - 1) / kPage * kPage;
  void* p = mmap(nullptr, 2 * kMargin + body_bytes, PROT_NONE,
                 MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (p == MAP_FAILED) return nullptr;
  Block block{static_cast<char*>(p), static_cast<char*>(p) + kMargin, body_bytes, bytes};
  if (body_bytes && mprotect(block.body, body_bytes, PROT_READ | PROT_WRITE) != 0) {
    munmap(p, 2 * kMargin + body_bytes);
    return nullptr;
  }
  // Vector accesses rely on 16 bytes of alignment, so up to 15 bytes may remain at the end.
  const size_t aligned = (bytes + 15) & ~size_t(15);
  char* start = at_start ? block.body : block.body + body_bytes - aligned;
  memset(block.body, kFill, size_t(start - block.body));
  memset(start + bytes, kFill, size_t(block.body + body_bytes - (start + bytes)));
  blocks()[start] = block;
  return start;
}

void softmetal_guarded_protect(void* memory, int read_only) {
  const Block& b = blocks().at(memory);
  mprotect(b.body, b.body_bytes, read_only ? PROT_READ : PROT_READ | PROT_WRITE);
}

int softmetal_guarded_damage(void* memory, int64_t* byte) {
  const Block& b = blocks().at(memory);
  const auto* start = static_cast<const char*>(memory);
  const char* end = start + b.bytes;
  for (const char* p = end; p < b.body + b.body_bytes; ++p)
    if (static_cast<unsigned char>(*p) != kFill) {
      *byte = p - start;
      return 1;
    }
  for (const char* p = start; p-- > b.body;)
    if (static_cast<unsigned char>(*p) != kFill) {
      *byte = p - start;
      return 1;
    }
  return 0;
}

void softmetal_guarded_delete(void* memory) {
  const auto i = blocks().find(memory);
  munmap(i->second.mapping, 2 * kMargin + i->second.body_bytes);
  blocks().erase(i);
}

}  // extern "C"
