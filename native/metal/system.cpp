// Asking the IORegistry and sysctl.
#include "metal/system.hpp"

#include <CoreFoundation/CoreFoundation.h>
#include <IOKit/IOKitLib.h>
#include <sys/sysctl.h>

namespace pamx::metal {

int32_t gpu_cores() {
  const io_service_t service =
      IOServiceGetMatchingService(kIOMainPortDefault, IOServiceMatching("AGXAccelerator"));
  if (!service) return 0;
  int32_t cores = 0;
  if (CFTypeRef count = IORegistryEntryCreateCFProperty(service, CFSTR("gpu-core-count"),
                                                        kCFAllocatorDefault, 0)) {
    if (CFGetTypeID(count) != CFNumberGetTypeID() ||
        !CFNumberGetValue(static_cast<CFNumberRef>(count), kCFNumberSInt32Type, &cores) ||
        cores < 0) {
      cores = 0;
    }
    CFRelease(count);
  }
  IOObjectRelease(service);
  return cores;
}

std::string os_version() {
  char version[32] = "";
  size_t size = sizeof version;
  if (sysctlbyname("kern.osproductversion", version, &size, nullptr, 0) != 0) return "";
  version[sizeof version - 1] = 0;
  return version;
}

}  // namespace pamx::metal
