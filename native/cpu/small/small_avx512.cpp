// The row kernels compiled for AVX-512.
#include "cpu/small/small.hpp"

#if defined(__x86_64__)
#include <immintrin.h>
#define PAMX_SIMD_AVX2

namespace pamx::cpu::avx512 {
#include "cpu/isa/simd.hpp"
// simd.hpp first: the kernels are written in its terms.
#include "cpu/small/kernel.hpp"

extern const RowKernels row_kernels{to_float, from_float, rms_norm,  layer_norm,
                                    rotate,   gate,       add_scaled};
}  // namespace pamx::cpu::avx512
#endif
