// What macOS knows about the GPU and Metal does not say.
#pragma once

#include <cstdint>
#include <string>

namespace pamx::metal {

// Cores of the GPU; 0: unknown. Source: the property "gpu-core-count" of the IORegistry's
// AGXAccelerator service.
int32_t gpu_cores();

// Version of macOS, for example "26.1"; empty: unknown.
std::string os_version();

}  // namespace pamx::metal
