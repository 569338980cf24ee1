// Eight float32 lanes, and conversion from and to the 16-bit formats, for one instruction set.
//
// Included by one source file per instruction set inside a namespace of its own, so that code
// compiled for AVX2 can never be picked by the linker for a machine without it. For the same
// reason this header and those files use no inline function of the C++ library.
//
// A reader of this file should assume nothing about the order of a sum except what it says:
// sum() adds lanes as ((0+4)+(2+6)) + ((1+5)+(3+7)) for every instruction set.

struct F8 {
#if defined(PAMX_SIMD_AVX2)
  __m256 v;
#else
  float v[8];
#endif
};

#if defined(PAMX_SIMD_AVX2)

static inline F8 splat(float x) { return {_mm256_set1_ps(x)}; }
static inline F8 load(const float* p) { return {_mm256_loadu_ps(p)}; }
static inline void store(float* p, F8 a) { _mm256_storeu_ps(p, a.v); }
static inline F8 add(F8 a, F8 b) { return {_mm256_add_ps(a.v, b.v)}; }
static inline F8 mul(F8 a, F8 b) { return {_mm256_mul_ps(a.v, b.v)}; }
static inline F8 max(F8 a, F8 b) { return {_mm256_max_ps(a.v, b.v)}; }
static inline F8 fma(F8 a, F8 b, F8 c) { return {_mm256_fmadd_ps(a.v, b.v, c.v)}; }
static inline float sum(F8 a) {
  __m128 x = _mm_add_ps(_mm256_castps256_ps128(a.v), _mm256_extractf128_ps(a.v, 1));
  x = _mm_add_ps(x, _mm_movehl_ps(x, x));
  return _mm_cvtss_f32(_mm_add_ss(x, _mm_movehdup_ps(x)));
}
// Nearest integer, as a float and as 2^n ready to multiply with; |a| must be below 127.
static inline F8 round_to_int(F8 a) {
  return {_mm256_round_ps(a.v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC)};
}
static inline F8 power_of_two(F8 n) {
  const __m256i biased = _mm256_add_epi32(_mm256_cvtps_epi32(n.v), _mm256_set1_epi32(127));
  return {_mm256_castsi256_ps(_mm256_slli_epi32(biased, 23))};
}
static inline F8 load_float16(const uint16_t* p) {
  return {_mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)))};
}
static inline F8 load_bfloat16(const uint16_t* p) {
  const __m256i wide = _mm256_cvtepu16_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
  return {_mm256_castsi256_ps(_mm256_slli_epi32(wide, 16))};
}

#else

static inline F8 splat(float x) { return {{x, x, x, x, x, x, x, x}}; }
static inline F8 load(const float* p) {
  F8 r;
  for (int i = 0; i < 8; ++i) r.v[i] = p[i];
  return r;
}
static inline void store(float* p, F8 a) {
  for (int i = 0; i < 8; ++i) p[i] = a.v[i];
}
static inline F8 add(F8 a, F8 b) {
  for (int i = 0; i < 8; ++i) a.v[i] += b.v[i];
  return a;
}
static inline F8 mul(F8 a, F8 b) {
  for (int i = 0; i < 8; ++i) a.v[i] *= b.v[i];
  return a;
}
static inline F8 max(F8 a, F8 b) {
  for (int i = 0; i < 8; ++i) a.v[i] = a.v[i] > b.v[i] ? a.v[i] : b.v[i];
  return a;
}
static inline F8 fma(F8 a, F8 b, F8 c) {
  for (int i = 0; i < 8; ++i) c.v[i] += a.v[i] * b.v[i];
  return c;
}
static inline float sum(F8 a) {
  return ((a.v[0] + a.v[4]) + (a.v[2] + a.v[6])) + ((a.v[1] + a.v[5]) + (a.v[3] + a.v[7]));
}
static inline F8 round_to_int(F8 a) {
  // Adding and taking away 1.5 * 2^23 leaves no bit for a fraction: round to nearest even.
  for (int i = 0; i < 8; ++i) a.v[i] = (a.v[i] + 12582912.0f) - 12582912.0f;
  return a;
}
static inline F8 power_of_two(F8 n) {
  for (int i = 0; i < 8; ++i) {
    const uint32_t bits = static_cast<uint32_t>(static_cast<int32_t>(n.v[i]) + 127) << 23;
    __builtin_memcpy(&n.v[i], &bits, 4);
  }
  return n;
}
static inline float float16_to_float(uint16_t h) {
  const uint32_t sign = static_cast<uint32_t>(h & 0x8000u) << 16;
  const uint32_t exponent = (h >> 10) & 31u;
  const uint32_t fraction = h & 0x3ffu;
  if (exponent == 0) {  // zero or subnormal: fraction * 2^-24
    const float magnitude = static_cast<float>(fraction) * 5.9604644775390625e-08f;
    return sign ? -magnitude : magnitude;
  }
  const uint32_t bits = sign | ((exponent == 31 ? 255u : exponent + 112u) << 23) | (fraction << 13);
  float f;
  __builtin_memcpy(&f, &bits, 4);
  return f;
}
static inline F8 load_float16(const uint16_t* p) {
  F8 r;
  for (int i = 0; i < 8; ++i) r.v[i] = float16_to_float(p[i]);
  return r;
}
static inline F8 load_bfloat16(const uint16_t* p) {
  F8 r;
  for (int i = 0; i < 8; ++i) {
    const uint32_t bits = static_cast<uint32_t>(p[i]) << 16;
    __builtin_memcpy(&r.v[i], &bits, 4);
  }
  return r;
}

#endif

// Round to nearest even, as MLX does; NaN stays NaN.
static inline uint16_t float_to_bfloat16(float f) {
  uint32_t bits;
  __builtin_memcpy(&bits, &f, 4);
  if ((bits & 0x7fffffffu) > 0x7f800000u) return static_cast<uint16_t>((bits >> 16) | 0x40u);
  return static_cast<uint16_t>((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}
static inline uint16_t float_to_float16(float f) {
#if defined(PAMX_SIMD_AVX2)
  return static_cast<uint16_t>(_cvtss_sh(f, _MM_FROUND_TO_NEAREST_INT));
#else
  uint32_t bits;
  __builtin_memcpy(&bits, &f, 4);
  const uint32_t sign = (bits >> 16) & 0x8000u;
  bits &= 0x7fffffffu;
  if (bits > 0x7f800000u) return static_cast<uint16_t>(sign | 0x7e00u);
  if (bits >= 0x477ff000u) return static_cast<uint16_t>(sign | 0x7c00u);  // rounds to infinity
  if (bits < 0x38800000u) {  // subnormal or zero: let float addition do the rounding
    float magnitude;
    __builtin_memcpy(&magnitude, &bits, 4);
    magnitude += 0.5f;  // the result's last place is now 2^-24, that of a subnormal float16
    __builtin_memcpy(&bits, &magnitude, 4);
    return static_cast<uint16_t>(sign | (bits - 0x3f000000u));
  }
  bits += 0xfffu + ((bits >> 13) & 1u);
  return static_cast<uint16_t>(sign | ((bits - 0x38000000u) >> 13));
#endif
}

// 2^x for x <= 0. The polynomial is a relative minimax fit of degree 6 on [-0.5, 0.5] with its
// constant fixed at 1, made with iteratively reweighted least squares; in float32 its relative
// error is below 8e-8. Below 2^-126 the result is held there, far under float32's rounding of
// any sum that has the term 2^0 in it.
static inline F8 exp2_nonpositive(F8 x) {
  x = max(x, splat(-126.0f));
  const F8 n = round_to_int(x);
  const F8 f = add(x, mul(n, splat(-1.0f)));
  F8 p = splat(0.00015353362f);
  p = fma(p, f, splat(0.0013398874f));
  p = fma(p, f, splat(0.009618437f));
  p = fma(p, f, splat(0.055503324f));
  p = fma(p, f, splat(0.24022648f));
  p = fma(p, f, splat(0.6931472f));
  p = fma(p, f, splat(1.0f));
  return mul(p, power_of_two(n));
}
