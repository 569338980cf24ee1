// The paged-attention kernel compiled for AVX2, FMA and F16C (x86-64-v3).
#include "cpu/attention/attention.hpp"

#if defined(__x86_64__)
#include <immintrin.h>
#define PAMX_SIMD_AVX2

namespace pamx::cpu::avx2 {
#include "cpu/isa/simd.hpp"
// simd.hpp first: the kernel is written in its terms.
#include "cpu/attention/kernel.hpp"

extern const Kernels kernels{write_rows, attend, fold_partials};
}  // namespace pamx::cpu::avx2
#endif
