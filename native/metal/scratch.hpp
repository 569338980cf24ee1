// Memory for partial results: kept between calls, and never more than the cap.
#pragma once

#import <Metal/Metal.h>

#include <mutex>
#include <vector>

#include "../../shaders/limits.h"
#include "metal/object.hpp"

namespace pamx::metal {

// Safe to use from any thread.
class Scratch {
 public:
  explicit Scratch(Object<id<MTLDevice>> device, uint64_t cap = limits::SCRATCH_CAP)
      : device_(std::move(device)), cap_(cap) {}

  // A buffer that goes back when it leaves its scope. By then the GPU must be done with it.
  class Lease {
   public:
    Lease(Scratch& owner, Object<id<MTLBuffer>> buffer)
        : owner_(&owner), buffer_(std::move(buffer)) {}
    Lease(Lease&& other) noexcept
        : owner_(std::exchange(other.owner_, nullptr)), buffer_(std::move(other.buffer_)) {}
    Lease& operator=(Lease&&) = delete;
    ~Lease() {
      if (owner_) owner_->give_back(std::move(buffer_));
    }
    void* handle() const { return buffer_.handle(); }

   private:
    Scratch* owner_;
    Object<id<MTLBuffer>> buffer_;
  };

  // Throws Error(PAMX_UNSUPPORTED) past the cap, PAMX_FAILED if there is no such memory.
  Lease take(uint64_t bytes);

  uint64_t held_bytes();  // lent and kept

 private:
  void give_back(Object<id<MTLBuffer>> buffer);

  Object<id<MTLDevice>> device_;
  const uint64_t cap_;
  std::mutex mutex_;
  std::vector<Object<id<MTLBuffer>>> free_;
  uint64_t held_ = 0;
};

}  // namespace pamx::metal
