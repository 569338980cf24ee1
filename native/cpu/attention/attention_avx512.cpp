// The paged-attention kernel compiled for AVX-512 (F, BW, DQ and VL, besides what AVX2 asks for).
#include "cpu/attention/attention.hpp"

#if defined(__x86_64__)
// GCC 12's own headers start vectors that are wholly overwritten from themselves.
#pragma GCC diagnostic ignored "-Wuninitialized"
#if !defined(__clang__)
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#endif
#include <immintrin.h>
#define PAMX_SIMD_AVX512

namespace pamx::cpu::avx512 {
#include "cpu/isa/simd.hpp"
// simd.hpp first: the kernel is written in its terms.
#include "cpu/attention/kernel.hpp"

extern const Kernels kernels{write_rows, attend, fold_partials};
}  // namespace pamx::cpu::avx512
#endif
