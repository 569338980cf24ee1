// Sixteen lanes with AVX-512 and VNNI.
#include "cpu/linear/kernels.hpp"

#if defined(__x86_64__)
#if defined(__GNUC__) && !defined(__clang__)
// GCC 12's own intrinsics begin with a register that is undefined on purpose, and warn about it.
#pragma GCC diagnostic ignored "-Wuninitialized"
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#endif
#include <immintrin.h>

#include <utility>

namespace pamx::cpu::avx512 {

struct F {
  __m512 v;
};
struct I {
  __m512i v;
};
struct B {
  __m512i v;
};

// 32 registers of 16 floats: a tile of 8 x 2 sums; 8 sums when weights come straight from a panel.
constexpr int kExactRows = 8, kExactPanels = 2, kExactSums = 8;
constexpr bool kOneByOne = false;

static inline F splat(float x) { return {_mm512_set1_ps(x)}; }
static inline F load(const float* p) { return {_mm512_loadu_ps(p)}; }
static inline void store(float* p, F a) { _mm512_storeu_ps(p, a.v); }
static inline F add(F a, F b) { return {_mm512_add_ps(a.v, b.v)}; }
static inline F mul(F a, F b) { return {_mm512_mul_ps(a.v, b.v)}; }
static inline F max(F a, F b) { return {_mm512_max_ps(a.v, b.v)}; }
static inline F abs(F a) { return {_mm512_abs_ps(a.v)}; }
static inline F fma(F a, F b, F c) { return {_mm512_fmadd_ps(a.v, b.v, c.v)}; }
static inline float fma1(float a, float b, float c) { return __builtin_fmaf(a, b, c); }
static inline F round(F a) {
  return {_mm512_roundscale_ps(a.v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC)};
}
static inline float max_of(F a) { return _mm512_reduce_max_ps(a.v); }
static inline float sum_of(F a) { return _mm512_reduce_add_ps(a.v); }

static inline F load_float16(const uint16_t* p) {
  return {_mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)))};
}
static inline F load_bfloat16(const uint16_t* p) {
  const __m512i wide =
      _mm512_cvtepu16_epi32(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
  return {_mm512_castsi512_ps(_mm512_slli_epi32(wide, 16))};
}
static inline void store_int8(int8_t* p, F a, F b) {
  auto* to = reinterpret_cast<__m128i*>(p);
  _mm_storeu_si128(to, _mm512_cvtepi32_epi8(_mm512_cvtps_epi32(a.v)));
  _mm_storeu_si128(to + 1, _mm512_cvtepi32_epi8(_mm512_cvtps_epi32(b.v)));
}

static inline B load_bytes(const uint8_t* p) { return {_mm512_loadu_si512(p)}; }
static inline B bytes(int x) { return {_mm512_set1_epi8(static_cast<char>(x))}; }
static inline B and_bytes(B a, B b) { return {_mm512_and_si512(a.v, b.v)}; }
static inline B or_bytes(B a, B b) { return {_mm512_or_si512(a.v, b.v)}; }
// Each byte's bits N to the right (left when negative); others' bits come in at the edge.
template <int N>
static inline B shift(B a) {
  if constexpr (N == 0) return a;
  if constexpr (N > 0) return {_mm512_srli_epi32(a.v, N)};
  return {_mm512_slli_epi32(a.v, static_cast<unsigned>(-N))};
}
// Byte j of each lane as a float in q[j].
static inline void spread(B a, F* q) {
  const __m512i first =
      _mm512_set4_epi32(0x0c | 0x80808000, 0x08 | 0x80808000, 0x04 | 0x80808000, 0x00 | 0x80808000);
  for (int j = 0; j < 4; ++j) {
    const __m512i pick = _mm512_add_epi32(first, _mm512_set1_epi32(j));
    q[j] = {_mm512_cvtepi32_ps(_mm512_shuffle_epi8(a.v, pick))};
  }
}

template <int BITS>
static inline B for_dot(B a) {
  return a;
}
template <int BITS>
static inline I unit_dot(const B* w, const int8_t* x) {
  __m512i dot = _mm512_setzero_si512();
  for (int v = 0; v < 8; ++v) {
    int32_t four;
    __builtin_memcpy(&four, x + 4 * v, 4);
    dot = _mm512_dpbusd_epi32(dot, w[v].v, _mm512_set1_epi32(four));
  }
  return {dot};
}
template <int BITS>
static inline I correct_dot(I dot, int32_t) {
  return dot;
}
static inline I two_digits(I high, I low) {
  return {_mm512_add_epi32(_mm512_slli_epi32(high.v, 7), low.v)};
}
static inline F to_float(I a) { return {_mm512_cvtepi32_ps(a.v)}; }

template <int LINES>
static inline void prefetch(const uint8_t* p) {
  constexpr int kAhead = 2048;
  for (int i = 0; i < LINES; ++i) {
    _mm_prefetch(reinterpret_cast<const char*>(p) + kAhead + 64 * i, _MM_HINT_T0);
  }
}

// Lanes first: the kernel is written in their terms.
#include "cpu/linear/kernel.hpp"

}  // namespace pamx::cpu::avx512
#endif
