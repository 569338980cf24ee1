// Asking the processor which instruction sets it has.
#include "cpu/isa/isa.hpp"

#include <cstdlib>
#include <cstring>
#include <initializer_list>

#if defined(__aarch64__) && defined(__linux__)
#include <sys/auxv.h>
#endif

namespace pamx::cpu {

namespace {

bool has(Isa isa) {
  switch (isa) {
    case Isa::portable:
      return true;
    case Isa::neon:
#if defined(__aarch64__) && defined(__linux__)
      return getauxval(AT_HWCAP) & (1UL << 20);  // HWCAP_ASIMDDP
#elif defined(__aarch64__) && defined(__APPLE__)
      return true;  // all of Apple's own processors
#else
      return false;
#endif
    case Isa::avx2:
#if defined(__x86_64__)
      return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
             __builtin_cpu_supports("f16c");
#else
      return false;
#endif
    case Isa::avx512:
#if defined(__x86_64__)
      return has(Isa::avx2) && __builtin_cpu_supports("avx512f") &&
             __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") &&
             __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512vnni");
#else
      return false;
#endif
  }
  return false;
}

}  // namespace

const char* isa_name(Isa isa) {
  switch (isa) {
    case Isa::neon:
      return "neon";
    case Isa::avx2:
      return "avx2";
    case Isa::avx512:
      return "avx512";
    default:
      return "portable";
  }
}

Isa isa() {
  static const Isa chosen = [] {
    const char* wanted = std::getenv("PAMX_CPU_ISA");
    Isa best = Isa::portable;
    for (const Isa candidate : {Isa::avx512, Isa::avx2, Isa::neon, Isa::portable}) {
      if (!has(candidate)) continue;
      if (best == Isa::portable) best = candidate;
      if (wanted && std::strcmp(wanted, isa_name(candidate)) == 0) return candidate;
    }
    return best;
  }();
  return chosen;
}

}  // namespace pamx::cpu
