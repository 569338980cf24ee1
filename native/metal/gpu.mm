// The GPUs that this process has used: one, but for machines with several.
#include "metal/gpu.hpp"

#include <deque>
#include <mutex>

#include "core/status.hpp"
#include "metal/device.hpp"

namespace pamx::metal {

namespace {

struct Known {
  std::mutex mutex;
  ShaderFiles files;
  std::deque<Gpu> gpus;
};

Known& known() {
  static Known* const made = new Known;
  return *made;
}

plan::GpuMachine machine_of(const GpuFacts& facts) {
  plan::GpuMachine machine;
  machine.name = facts.name;
  machine.architecture = facts.architecture;
  if (!facts.os_version.empty()) machine.system = "macOS " + facts.os_version;
  machine.cores = facts.cores;
  machine.family = facts.family;
  machine.tensor_units = plan::has_tensor_units(facts.architecture);
  machine.tensor_compiler = compiles_tensor_operations(facts.os_version);
  machine.threadgroup_memory = static_cast<int32_t>(facts.threadgroup_bytes);
  machine.working_set = static_cast<int64_t>(facts.working_set_bytes);
  return machine;
}

}  // namespace

Gpu::Gpu(void* device, GpuFacts facts, ShaderFiles files)
    : device(device),
      facts(std::move(facts)),
      machine(machine_of(this->facts)),
      library(device, std::move(files)) {}

void set_shader_files(ShaderFiles files) {
  std::lock_guard lock(known().mutex);
  known().files = std::move(files);
}

Gpu& gpu_of(void* device) {
  std::lock_guard lock(known().mutex);
  for (Gpu& gpu : known().gpus) {
    if (gpu.device == device) return gpu;
  }
  if (known().files.folder.empty()) {
    throw Error(PAMX_UNSUPPORTED, "nobody has said where the Metal shaders are");
  }
  @autoreleasepool {  // MLX's path comes here from threads that have none
    return known().gpus.emplace_back(device, facts_of((__bridge id<MTLDevice>)device),
                                     known().files);
  }
}

Gpu& system_gpu() {
  static const auto* const device = new Object<id<MTLDevice>>(default_device());
  return gpu_of(device->handle());
}

}  // namespace pamx::metal
