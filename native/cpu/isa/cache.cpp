// Asking the system for cache sizes: sysfs on Linux, sysctl on macOS.
#include "cpu/isa/cache.hpp"

#include <cstdio>
#include <string>

#if defined(__APPLE__)
#include <sys/sysctl.h>
#endif

namespace pamx::cpu {

namespace {

constexpr int64_t kUnknown = 512 << 10;

int64_t ask() {
#if defined(__APPLE__)
  // A cluster of cores shares it; the fast cores come first.
  const auto value = [](const char* name) {
    int64_t bytes = 0;
    size_t size = sizeof bytes;
    return sysctlbyname(name, &bytes, &size, nullptr, 0) == 0 ? bytes : 0;
  };
  const int64_t cluster = value("hw.perflevel0.l2cachesize");
  const int64_t cores = value("hw.perflevel0.cpusperl2");
  if (cluster > 0 && cores > 0) return cluster / cores;
  const int64_t whole = value("hw.l2cachesize");
  return whole > 0 ? whole : kUnknown;
#else
  for (int index = 0; index < 8; ++index) {
    const std::string folder =
        "/sys/devices/system/cpu/cpu0/cache/index" + std::to_string(index) + "/";
    const auto read = [&](const char* name, long long* number, char* unit) {
      std::FILE* file = std::fopen((folder + name).c_str(), "r");
      if (!file) return false;
      const int found = std::fscanf(file, "%lld%c", number, unit);
      std::fclose(file);
      return found >= 1;
    };
    long long level = 0, size = 0;
    char unit = 0;
    if (!read("level", &level, &unit) || level != 2) continue;
    unit = 0;
    if (!read("size", &size, &unit) || size <= 0) continue;
    return unit == 'K' ? size << 10 : unit == 'M' ? size << 20 : size;
  }
  return kUnknown;
#endif
}

}  // namespace

int64_t l2_bytes() {
  static const int64_t bytes = ask();
  return bytes;
}

}  // namespace pamx::cpu
