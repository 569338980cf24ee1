// The Metal device and what it can do.
#pragma once

#import <Metal/Metal.h>

#include "metal/facts.hpp"
#include "metal/object.hpp"

namespace pamx::metal {

// Throws Error(PAMX_UNSUPPORTED): this machine has none.
Object<id<MTLDevice>> default_device();

GpuFacts facts_of(id<MTLDevice> device);

}  // namespace pamx::metal
