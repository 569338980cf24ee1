// Something that another part of the library makes of an object once and keeps with it.
#pragma once

#include <memory>
#include <mutex>

namespace pamx {

// Safe to use from any thread, on objects that are otherwise constant.
class Attached {
 public:
  // What was made before, or what `make`, a function that returns a T, makes now. One T an object.
  template <class T, class Make>
  T& get(Make&& make) const {
    std::lock_guard lock(mutex_);
    if (!value_) value_ = std::make_shared<T>(make());
    return *static_cast<T*>(value_.get());
  }

 private:
  mutable std::mutex mutex_;
  mutable std::shared_ptr<void> value_;
};

}  // namespace pamx
