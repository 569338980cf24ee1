// Sixteen lanes with AVX2, FMA and F16C: two registers each.
#include "cpu/linear/kernels.hpp"

#if defined(__x86_64__)
#include <immintrin.h>

#include <utility>

namespace pamx::cpu::avx2 {

struct F {
  __m256 a, b;
};
struct I {
  __m256i a, b;
};
struct B {
  __m256i a, b;
};

// 16 registers of 8 floats.
constexpr int kExactRows = 6, kExactPanels = 1, kExactSums = 2;
constexpr bool kOneByOne = false;

static inline F splat(float x) { return {_mm256_set1_ps(x), _mm256_set1_ps(x)}; }
static inline F load(const float* p) { return {_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)}; }
static inline void store(float* p, F x) {
  _mm256_storeu_ps(p, x.a);
  _mm256_storeu_ps(p + 8, x.b);
}
static inline F add(F x, F y) { return {_mm256_add_ps(x.a, y.a), _mm256_add_ps(x.b, y.b)}; }
static inline F mul(F x, F y) { return {_mm256_mul_ps(x.a, y.a), _mm256_mul_ps(x.b, y.b)}; }
static inline F max(F x, F y) { return {_mm256_max_ps(x.a, y.a), _mm256_max_ps(x.b, y.b)}; }
static inline F abs(F x) {
  const __m256 sign = _mm256_set1_ps(-0.0f);
  return {_mm256_andnot_ps(sign, x.a), _mm256_andnot_ps(sign, x.b)};
}
static inline F fma(F x, F y, F z) {
  return {_mm256_fmadd_ps(x.a, y.a, z.a), _mm256_fmadd_ps(x.b, y.b, z.b)};
}
static inline float fma1(float a, float b, float c) { return __builtin_fmaf(a, b, c); }
static inline F round(F x) {
  constexpr int kNearest = _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC;
  return {_mm256_round_ps(x.a, kNearest), _mm256_round_ps(x.b, kNearest)};
}
static inline float max_of(F x) {
  const __m256 y = _mm256_max_ps(x.a, x.b);
  __m128 z = _mm_max_ps(_mm256_castps256_ps128(y), _mm256_extractf128_ps(y, 1));
  z = _mm_max_ps(z, _mm_movehl_ps(z, z));
  return _mm_cvtss_f32(_mm_max_ss(z, _mm_movehdup_ps(z)));
}
static inline float sum_of(F x) {
  const __m256 y = _mm256_add_ps(x.a, x.b);
  __m128 z = _mm_add_ps(_mm256_castps256_ps128(y), _mm256_extractf128_ps(y, 1));
  z = _mm_add_ps(z, _mm_movehl_ps(z, z));
  return _mm_cvtss_f32(_mm_add_ss(z, _mm_movehdup_ps(z)));
}

static inline F load_float16(const uint16_t* p) {
  const auto* q = reinterpret_cast<const __m128i*>(p);
  return {_mm256_cvtph_ps(_mm_loadu_si128(q)), _mm256_cvtph_ps(_mm_loadu_si128(q + 1))};
}
static inline F load_bfloat16(const uint16_t* p) {
  const auto* q = reinterpret_cast<const __m128i*>(p);
  const __m256i a = _mm256_slli_epi32(_mm256_cvtepu16_epi32(_mm_loadu_si128(q)), 16);
  const __m256i b = _mm256_slli_epi32(_mm256_cvtepu16_epi32(_mm_loadu_si128(q + 1)), 16);
  return {_mm256_castsi256_ps(a), _mm256_castsi256_ps(b)};
}
static inline void store_int8(int8_t* p, F x, F y) {
  const __m256i low = _mm256_packs_epi32(_mm256_cvtps_epi32(x.a), _mm256_cvtps_epi32(x.b));
  const __m256i high = _mm256_packs_epi32(_mm256_cvtps_epi32(y.a), _mm256_cvtps_epi32(y.b));
  // The packs work within 128 bits; this puts their fours into order.
  const __m256i order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p),
                      _mm256_permutevar8x32_epi32(_mm256_packs_epi16(low, high), order));
}

static inline B load_bytes(const uint8_t* p) {
  const auto* q = reinterpret_cast<const __m256i*>(p);
  return {_mm256_loadu_si256(q), _mm256_loadu_si256(q + 1)};
}
static inline B bytes(int x) {
  const __m256i v = _mm256_set1_epi8(static_cast<char>(x));
  return {v, v};
}
static inline B and_bytes(B x, B y) {
  return {_mm256_and_si256(x.a, y.a), _mm256_and_si256(x.b, y.b)};
}
static inline B or_bytes(B x, B y) {
  return {_mm256_or_si256(x.a, y.a), _mm256_or_si256(x.b, y.b)};
}
// Each byte's bits N to the right (left when negative); others' bits come in at the edge.
template <int N>
static inline B shift(B x) {
  if constexpr (N == 0) return x;
  if constexpr (N > 0) return {_mm256_srli_epi32(x.a, N), _mm256_srli_epi32(x.b, N)};
  return {_mm256_slli_epi32(x.a, -N), _mm256_slli_epi32(x.b, -N)};
}
// Byte j of each lane as a float in q[j].
static inline void spread(B x, F* q) {
  const __m256i byte = _mm256_set1_epi32(255);
  q[0] = {_mm256_cvtepi32_ps(_mm256_and_si256(x.a, byte)),
          _mm256_cvtepi32_ps(_mm256_and_si256(x.b, byte))};
  q[1] = {_mm256_cvtepi32_ps(_mm256_and_si256(_mm256_srli_epi32(x.a, 8), byte)),
          _mm256_cvtepi32_ps(_mm256_and_si256(_mm256_srli_epi32(x.b, 8), byte))};
  q[2] = {_mm256_cvtepi32_ps(_mm256_and_si256(_mm256_srli_epi32(x.a, 16), byte)),
          _mm256_cvtepi32_ps(_mm256_and_si256(_mm256_srli_epi32(x.b, 16), byte))};
  q[3] = {_mm256_cvtepi32_ps(_mm256_srli_epi32(x.a, 24)),
          _mm256_cvtepi32_ps(_mm256_srli_epi32(x.b, 24))};
}

// maddubs adds two products of unsigned and signed bytes and saturates at 16 bits. Up to 6 bits
// the products cannot get there (2 * 63 * 127). 8 bit weights go in as q - 128 by magnitude, with
// their sign on the activation (2 * 128 * 127 still fits), and 128 times the activations' sum is
// added at the end.
template <int BITS>
static inline B for_dot(B x) {
  if constexpr (BITS < 8) return x;
  const __m256i flip = _mm256_set1_epi8(-128);
  return {_mm256_xor_si256(x.a, flip), _mm256_xor_si256(x.b, flip)};
}
template <int BITS>
static inline I unit_dot(const B* w, const int8_t* x) {
  const __m256i ones = _mm256_set1_epi16(1);
  // Vectors whose 16-bit sums cannot overflow: 8 of up to 4 bits, 2 of 6 bits, 1 of 8 bits.
  constexpr int kTogether = BITS <= 4 ? 8 : BITS == 6 ? 2 : 1;
  I dot{_mm256_setzero_si256(), _mm256_setzero_si256()};
  for (int v = 0; v < 8; v += kTogether) {
    __m256i a = _mm256_setzero_si256(), b = a;
    for (int i = v; i < v + kTogether; ++i) {
      int32_t four;
      __builtin_memcpy(&four, x + 4 * i, 4);
      const __m256i y = _mm256_set1_epi32(four);
      if constexpr (BITS < 8) {
        a = _mm256_add_epi16(a, _mm256_maddubs_epi16(w[i].a, y));
        b = _mm256_add_epi16(b, _mm256_maddubs_epi16(w[i].b, y));
      } else {
        a = _mm256_maddubs_epi16(_mm256_abs_epi8(w[i].a), _mm256_sign_epi8(y, w[i].a));
        b = _mm256_maddubs_epi16(_mm256_abs_epi8(w[i].b), _mm256_sign_epi8(y, w[i].b));
      }
    }
    dot.a = _mm256_add_epi32(dot.a, _mm256_madd_epi16(a, ones));
    dot.b = _mm256_add_epi32(dot.b, _mm256_madd_epi16(b, ones));
  }
  return dot;
}
template <int BITS>
static inline I correct_dot(I dot, int32_t total) {
  if constexpr (BITS < 8) return dot;
  const __m256i missing = _mm256_set1_epi32(128 * total);
  return {_mm256_add_epi32(dot.a, missing), _mm256_add_epi32(dot.b, missing)};
}
static inline I two_digits(I high, I low) {
  return {_mm256_add_epi32(_mm256_slli_epi32(high.a, 7), low.a),
          _mm256_add_epi32(_mm256_slli_epi32(high.b, 7), low.b)};
}
static inline F to_float(I x) { return {_mm256_cvtepi32_ps(x.a), _mm256_cvtepi32_ps(x.b)}; }

template <int LINES>
static inline void prefetch(const uint8_t* p) {
  constexpr int kAhead = 2048;
  for (int i = 0; i < LINES; ++i) {
    _mm_prefetch(reinterpret_cast<const char*>(p) + kAhead + 64 * i, _MM_HINT_T0);
  }
}

// Lanes first: the kernel is written in their terms.
#include "cpu/linear/kernel.hpp"

}  // namespace pamx::cpu::avx2
#endif
