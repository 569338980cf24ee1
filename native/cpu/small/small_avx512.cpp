// The row kernels compiled for AVX-512.
#include "cpu/small/small.hpp"

#if defined(__x86_64__)
#if defined(__GNUC__) && !defined(__clang__)
// GCC 12's own intrinsics begin with a register that is undefined on purpose, and warn about it.
#pragma GCC diagnostic ignored "-Wuninitialized"
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#endif
#include <immintrin.h>
#define PAMX_SIMD_AVX512

namespace pamx::cpu::avx512 {
#include "cpu/isa/simd.hpp"
// simd.hpp first: the kernels are written in its terms.
#include "cpu/small/kernel.hpp"

extern const RowKernels row_kernels{to_float, from_float, rms_norm,  layer_norm,
                                    rotate,   gate,       add_scaled};
}  // namespace pamx::cpu::avx512
#endif
