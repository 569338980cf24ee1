// An Objective-C object that C++ holds: released once, with and without reference counting by the
// compiler (ARC).
#pragma once

#import <Foundation/Foundation.h>

#include <utility>

namespace pamx::metal {

template <class T>
class Object {
 public:
  Object() = default;
  // Takes over a reference that the caller owns: what new..., alloc and copy methods return.
  static Object adopt(T raw) {
    Object object;
    object.raw_ = raw;
    return object;
  }
  // Adds a reference to an object that somebody else owns: what every other method returns.
  static Object share(T raw) { return adopt(retained(raw)); }

  Object(const Object& other) : raw_(retained(other.raw_)) {}
  Object(Object&& other) noexcept : raw_(std::exchange(other.raw_, nil)) {}
  Object& operator=(Object other) noexcept {
    std::swap(raw_, other.raw_);
    return *this;
  }
  ~Object() {
#if !__has_feature(objc_arc)
    [raw_ release];
#endif
  }

  T get() const { return raw_; }
  explicit operator bool() const { return raw_ != nil; }
  // The object as C++ that knows no Objective-C passes it on; no reference changes hands.
  void* handle() const { return (__bridge void*)raw_; }

 private:
  static T retained(T raw) {
#if !__has_feature(objc_arc)
    [raw retain];
#endif
    return raw;
  }

  T raw_ = nil;
};

}  // namespace pamx::metal
