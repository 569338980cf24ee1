// The smallest kept buffer that is large enough, or a new one; kept ones go when the cap is near.
#include "metal/scratch.hpp"

#include <algorithm>
#include <string>

#include "core/status.hpp"

namespace pamx::metal {

namespace {

// So that a context that grows token by token asks for a new buffer seldom.
uint64_t rounded(uint64_t bytes) {
  uint64_t size = uint64_t{64} << 10;
  while (size < bytes) size *= 2;
  return size;
}

}  // namespace

Scratch::Lease Scratch::take(uint64_t bytes) {
  std::lock_guard lock(mutex_);
  const auto smaller = [](const auto& a, const auto& b) {
    return [a.get() length] < [b.get() length];
  };
  std::sort(free_.begin(), free_.end(), smaller);
  const auto fits = std::find_if(free_.begin(), free_.end(),
                                 [&](const auto& b) { return [b.get() length] >= bytes; });
  if (fits != free_.end()) {
    auto buffer = std::move(*fits);
    free_.erase(fits);
    return {*this, std::move(buffer)};
  }
  const uint64_t size = rounded(bytes) <= cap_ ? rounded(bytes) : bytes;
  while (held_ + size > cap_ && !free_.empty()) {
    held_ -= [free_.back().get() length];
    free_.pop_back();
  }
  if (held_ + size > cap_) {
    throw Error(PAMX_UNSUPPORTED, std::to_string(bytes) + " bytes of partial results and the " +
                                      std::to_string(held_) + " in use are more than the " +
                                      std::to_string(cap_) + " that attention may take");
  }
  // The CPU never looks at partial results.
  auto buffer = Object<id<MTLBuffer>>::adopt(
      [device_.get() newBufferWithLength:size options:MTLResourceStorageModePrivate]);
  if (!buffer) {
    throw Error(PAMX_FAILED, "Metal has no " + std::to_string(size) + " bytes for partial results");
  }
  held_ += size;
  return {*this, std::move(buffer)};
}

uint64_t Scratch::held_bytes() {
  std::lock_guard lock(mutex_);
  return held_;
}

void Scratch::give_back(Object<id<MTLBuffer>> buffer) {
  std::lock_guard lock(mutex_);
  free_.push_back(std::move(buffer));
}

}  // namespace pamx::metal
