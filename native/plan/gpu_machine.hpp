// What is known of a GPU: plain data, so that a plan can be made for a machine that is not here.
#pragma once

#include <cstdint>
#include <string>

#include "../../shaders/limits.h"

namespace pamx::plan {

struct GpuMachine {
  std::string name;              // for people, for example "Apple M3"
  std::string architecture;      // for example "applegpu_g15g"; empty: unknown
  std::string system;            // for people, for example "macOS 26.2"
  int32_t cores = 0;             // 0: unknown
  int32_t family = 0;            // n of MTLGPUFamilyApple<n>; 0: unknown
  bool tensor_units = false;     // the GPU has them
  bool tensor_compiler = false;  // this system's Metal compiles matmul2d
  int32_t threadgroup_memory = static_cast<int32_t>(limits::THREADGROUP_MEMORY);  // bytes
  int32_t threadgroup_threads = static_cast<int32_t>(limits::LARGEST_THREADGROUP);
  int64_t working_set = 0;  // bytes that the system recommends to stay below; 0: unknown
};

// Whether GPUs of this architecture have tensor units, by the generation in its name.
bool has_tensor_units(const std::string& architecture);

}  // namespace pamx::plan
