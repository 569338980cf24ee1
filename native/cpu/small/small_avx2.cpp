// The row kernels compiled for AVX2, FMA and F16C (x86-64-v3).
#include "cpu/small/small.hpp"

#if defined(__x86_64__)
#include <immintrin.h>
#define PAMX_SIMD_AVX2

namespace pamx::cpu::avx2 {
#include "cpu/isa/simd.hpp"
// simd.hpp first: the kernels are written in its terms.
#include "cpu/small/kernel.hpp"

extern const RowKernels row_kernels{to_float, from_float, rms_norm,  layer_norm,
                                    rotate,   gate,       add_scaled};
}  // namespace pamx::cpu::avx2
#endif
