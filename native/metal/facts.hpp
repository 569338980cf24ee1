// What is known about a GPU.
#pragma once

#include <cstdint>
#include <cstdio>
#include <string>

namespace pamx::metal {

struct GpuFacts {
  std::string name;                // for example "Apple M3 Max"
  std::string architecture;        // for example "applegpu_g15s"; empty: the system does not say
  std::string os_version;          // of macOS, for example "26.1"; empty: unknown
  int32_t family = 0;              // n of MTLGPUFamilyApple<n>; 0: no GPU of Apple's
  int32_t cores = 0;               // 0: unknown
  uint64_t working_set_bytes = 0;  // what Metal recommends to keep resident
  uint64_t largest_buffer_bytes = 0;
  uint32_t threadgroup_bytes = 0;  // threadgroup memory
};

// Whether this macOS compiles Metal's tensor operations (language version 4.0, matmul2d): from 26.2
// on, as in MLX, mlx/backend/metal/device.cpp, is_nax_available.
inline bool compiles_tensor_operations(const std::string& os_version) {
  int major = 0, minor = 0;
  std::sscanf(os_version.c_str(), "%d.%d", &major, &minor);
  return major > 26 || (major == 26 && minor >= 2);
}

}  // namespace pamx::metal
