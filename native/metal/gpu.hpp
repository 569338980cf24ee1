// A GPU as the rest of the library uses it: its compiled kernels, and what is known of it.
#pragma once

#include "metal/facts.hpp"
#include "metal/library.hpp"
#include "plan/gpu_machine.hpp"

namespace pamx::metal {

struct Gpu {
  Gpu(void* device, GpuFacts facts, ShaderFiles files);

  void* const device;  // id<MTLDevice>; the library keeps it
  const GpuFacts facts;
  const plan::GpuMachine machine;  // the facts as the planner takes them
  Library library;
};

// Where the shaders are; before the first call of the others.
void set_shader_files(ShaderFiles files);

// The GPU that is the system's default, or this id<MTLDevice>. Found once and never released, since
// pipelines may be in use when the process ends. Throws Error(PAMX_UNSUPPORTED): there is none, or
// nobody has said where the shaders are.
Gpu& system_gpu();
Gpu& gpu_of(void* device);

}  // namespace pamx::metal
