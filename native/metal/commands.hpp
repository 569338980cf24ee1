// A command queue of our own: encode, run, wait.
#pragma once

#import <Metal/Metal.h>

#include <functional>

#include "metal/encoder.hpp"
#include "metal/object.hpp"

namespace pamx::metal {

// Safe to use from any thread.
class Commands {
 public:
  explicit Commands(id<MTLDevice> device);

  // Encodes what `encode` says, runs it and waits for its end. Returns the seconds that the GPU
  // took. Throws what `encode` throws, having run nothing, and Error(PAMX_FAILED) if the GPU fails.
  double run(const std::function<void(KernelEncoder&)>& encode);

 private:
  Object<id<MTLCommandQueue>> queue_;
};

}  // namespace pamx::metal
