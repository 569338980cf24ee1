// The row kernels compiled for NEON (Armv8.2-A).
#include "cpu/small/small.hpp"

#if defined(__aarch64__)
#include <arm_neon.h>
#define PAMX_SIMD_NEON

namespace pamx::cpu::neon {
#include "cpu/isa/simd.hpp"
// simd.hpp first: the kernels are written in its terms.
#include "cpu/small/kernel.hpp"

extern const RowKernels row_kernels{to_float, from_float, rms_norm,  layer_norm,
                                    rotate,   gate,       add_scaled};
}  // namespace pamx::cpu::neon
#endif
