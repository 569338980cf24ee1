// Buffers whose neighbours are pages that nobody may touch.
#include <sys/mman.h>
#include <unistd.h>

#include <cstring>

#include "device.hpp"

namespace {

size_t page() {
  static const auto size = static_cast<size_t>(sysconf(_SC_PAGESIZE));
  return size;
}

}  // namespace

@implementation SoftBuffer
- (id)initWithLength:(size_t)length isPrivate:(BOOL)is_private {
  if (!(self = [super init])) return nil;
  const size_t body = (length + page() - 1) / page() * page();
  mapped_ = body + 2 * page();
  void* mapping =
      mmap(nullptr, mapped_, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (mapping == MAP_FAILED) {
    mapped_ = 0;
    [self release];
    return nil;
  }
  mapping_ = static_cast<char*>(mapping);
  mprotect(mapping_ + page(), body, PROT_READ | PROT_WRITE);
  // The end lies at the border, but for what 16-byte alignment leaves.
  memory_ = mapping_ + page() + body - (length + 15) / 16 * 16;
  length_ = length;
  private_ = is_private;
  // Metal promises nothing about new memory; small buffers show who relies on zeros.
  if (length <= size_t{16} << 20) memset(memory_, 0xff, length);
  return self;
}
- (NSUInteger)length {
  return length_;
}
- (void*)contents {
  if (private_) softmetal::broke_rule("the CPU asks for the contents of a private buffer");
  return memory_;
}
- (void)dealloc {
  if (mapped_) munmap(mapping_, mapped_);
  [super dealloc];
}
@end
