// The paged-attention kernel compiled for NEON (Armv8.2-A).
#include "cpu/attention/attention.hpp"

#if defined(__aarch64__)
#include <arm_neon.h>
#define PAMX_SIMD_NEON

namespace pamx::cpu::neon {
#include "cpu/isa/simd.hpp"
// simd.hpp first: the kernel is written in its terms.
#include "cpu/attention/kernel.hpp"

extern const Kernels kernels{write_rows, attend, fold_partials};
}  // namespace pamx::cpu::neon
#endif
