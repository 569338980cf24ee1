// The IORegistry and sysctl of the software device: each name is answered from its Machine.
#include <CoreFoundation/CoreFoundation.h>
#include <IOKit/IOKitLib.h>
#include <sys/sysctl.h>

#include <cstdint>
#include <cstdio>
#include <cstring>
#include <string>

namespace softmetal {

// As device.hpp declares it, without Objective-C.
int32_t machine_cores();
const char* machine_os_version();

namespace {

struct Number {
  int32_t value;
};
constexpr io_service_t kAccelerator = 7;
constexpr CFTypeID kNumber = 22;

}  // namespace

}  // namespace softmetal

#define SHOWN __attribute__((visibility("default")))

extern "C" {

SHOWN const mach_port_t kIOMainPortDefault = 0;
SHOWN const CFAllocatorRef kCFAllocatorDefault = nullptr;

// The dictionary is the class's name itself.
SHOWN CFMutableDictionaryRef IOServiceMatching(const char* name) {
  return reinterpret_cast<CFMutableDictionaryRef>(const_cast<char*>(name));
}

SHOWN io_service_t IOServiceGetMatchingService(mach_port_t, CFDictionaryRef matching) {
  const bool known = !std::strcmp(reinterpret_cast<const char*>(matching), "AGXAccelerator");
  return known && softmetal::machine_cores() ? softmetal::kAccelerator : 0;
}

SHOWN CFTypeRef IORegistryEntryCreateCFProperty(io_registry_entry_t entry, CFStringRef key,
                                                CFAllocatorRef, IOOptionBits) {
  const bool known = entry == softmetal::kAccelerator &&
                     !std::strcmp(reinterpret_cast<const char*>(key), "gpu-core-count");
  return known ? new softmetal::Number{softmetal::machine_cores()} : nullptr;
}

SHOWN kern_return_t IOObjectRelease(io_object_t) { return 0; }
SHOWN CFTypeID CFGetTypeID(CFTypeRef) { return softmetal::kNumber; }
SHOWN CFTypeID CFNumberGetTypeID(void) { return softmetal::kNumber; }

SHOWN Boolean CFNumberGetValue(CFNumberRef number, CFNumberType type, void* value) {
  if (type != kCFNumberSInt32Type) return 0;
  *static_cast<int32_t*>(value) = reinterpret_cast<const softmetal::Number*>(number)->value;
  return 1;
}

SHOWN void CFRelease(CFTypeRef object) { delete static_cast<const softmetal::Number*>(object); }

SHOWN int sysctlbyname(const char* name, void* value, size_t* size, void*, size_t) {
  const std::string version = softmetal::machine_os_version();
  if (std::strcmp(name, "kern.osproductversion") != 0 || version.size() >= *size) return -1;
  *size = version.copy(static_cast<char*>(value), version.size()) + 1;
  static_cast<char*>(value)[version.size()] = 0;
  return version.empty() ? -1 : 0;
}
}
