// Finding the device; asking for its family and limits.
#include "metal/device.hpp"

#include "core/status.hpp"
#include "metal/system.hpp"
#include "metal/words.hpp"

namespace pamx::metal {

namespace {

// Families are numbered in order and each contains those before it; a number that the system does
// not know is not supported, so this also finds GPUs that are newer than this file.
int32_t family_of(id<MTLDevice> device) {
  for (int32_t n = 30; n >= 1; --n) {
    if ([device supportsFamily:static_cast<MTLGPUFamily>(MTLGPUFamilyApple1 + n - 1)]) return n;
  }
  return 0;
}

}  // namespace

Object<id<MTLDevice>> default_device() {
  auto device = Object<id<MTLDevice>>::adopt(MTLCreateSystemDefaultDevice());
  if (!device) throw Error(PAMX_UNSUPPORTED, "this machine has no Metal device");
  return device;
}

GpuFacts facts_of(id<MTLDevice> device) {
  GpuFacts facts;
  facts.name = words([device name]);
  if ([device respondsToSelector:@selector(architecture)]) {  // from macOS 14
    facts.architecture = words([[device architecture] name]);
  }
  facts.os_version = os_version();
  facts.family = family_of(device);
  facts.cores = gpu_cores();
  facts.working_set_bytes = [device recommendedMaxWorkingSetSize];
  facts.largest_buffer_bytes = [device maxBufferLength];
  facts.threadgroup_bytes = static_cast<uint32_t>([device maxThreadgroupMemoryLength]);
  return facts;
}

}  // namespace pamx::metal
