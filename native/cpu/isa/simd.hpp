// Float32 lanes, and conversion from and to the 16-bit formats, for one instruction set.
//
// Included by one source file per instruction set inside a namespace of its own, so that code
// compiled for AVX2 can never be picked by the linker for a machine without it. For the same
// reason this header and those files use no inline function of the C++ library. The file says
// which set by PAMX_SIMD_AVX512, PAMX_SIMD_AVX2 or PAMX_SIMD_NEON; plain C++ without.
//
// F8 is eight lanes everywhere. F is what the set does best, kLanes of them: sixteen with
// AVX-512, else F8. Wide is sixteen lanes everywhere, one or two F, for sums whose order must
// not depend on the set. Free functions take any of them; what makes one is a static member.
//
// A reader of this file should assume nothing about the order of a sum except what it says:
// sum() of F8 adds lanes as ((0+4)+(2+6)) + ((1+5)+(3+7)), and that of Wide begins by adding
// lane i+8 to lane i, for every instruction set.

#if defined(PAMX_SIMD_AVX512) && !defined(PAMX_SIMD_AVX2)
#define PAMX_SIMD_AVX2
#endif

// ---- the 16-bit formats, one number at a time ---------------------------------------------------

// Round to nearest even, as MLX does; NaN stays NaN.
static inline uint16_t float_to_bfloat16(float f) {
  uint32_t bits;
  __builtin_memcpy(&bits, &f, 4);
  if ((bits & 0x7fffffffu) > 0x7f800000u) return static_cast<uint16_t>((bits >> 16) | 0x40u);
  return static_cast<uint16_t>((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}
static inline float bfloat16_to_float(uint16_t h) {
  const uint32_t bits = static_cast<uint32_t>(h) << 16;
  float f;
  __builtin_memcpy(&f, &bits, 4);
  return f;
}
#if defined(PAMX_SIMD_AVX2)
static inline uint16_t float_to_float16(float f) {
  return static_cast<uint16_t>(_cvtss_sh(f, _MM_FROUND_TO_NEAREST_INT));
}
static inline float float16_to_float(uint16_t h) { return _cvtsh_ss(h); }
#else
static inline uint16_t float_to_float16(float f) {
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
#endif

// ---- eight lanes --------------------------------------------------------------------------------

struct F8 {
#if defined(PAMX_SIMD_AVX2)
  __m256 v;
#elif defined(PAMX_SIMD_NEON)
  float32x4_t v[2];
#else
  float v[8];
#endif
  static inline F8 splat(float x);
  static inline F8 load(const float* p);
  static inline F8 load_float16(const uint16_t* p);
  static inline F8 load_bfloat16(const uint16_t* p);
};

#if defined(PAMX_SIMD_AVX2)

inline F8 F8::splat(float x) { return {_mm256_set1_ps(x)}; }
inline F8 F8::load(const float* p) { return {_mm256_loadu_ps(p)}; }
inline F8 F8::load_float16(const uint16_t* p) {
  return {_mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)))};
}
inline F8 F8::load_bfloat16(const uint16_t* p) {
  const __m256i wide = _mm256_cvtepu16_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
  return {_mm256_castsi256_ps(_mm256_slli_epi32(wide, 16))};
}
static inline void store(float* p, F8 a) { _mm256_storeu_ps(p, a.v); }
static inline void store_float16(uint16_t* p, F8 a) {
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm256_cvtps_ph(a.v, _MM_FROUND_TO_NEAREST_INT));
}
static inline F8 add(F8 a, F8 b) { return {_mm256_add_ps(a.v, b.v)}; }
static inline F8 sub(F8 a, F8 b) { return {_mm256_sub_ps(a.v, b.v)}; }
static inline F8 mul(F8 a, F8 b) { return {_mm256_mul_ps(a.v, b.v)}; }
static inline F8 div(F8 a, F8 b) { return {_mm256_div_ps(a.v, b.v)}; }
// b where either is NaN.
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
static inline F8 magnitude(F8 a) { return {_mm256_andnot_ps(_mm256_set1_ps(-0.0f), a.v)}; }
static inline F8 with_sign_of(F8 a, F8 sign) {  // a >= 0
  return {_mm256_or_ps(a.v, _mm256_and_ps(_mm256_set1_ps(-0.0f), sign.v))};
}
// a, or 0 where x < limit.
static inline F8 zero_below(F8 x, F8 limit, F8 a) {
  return {_mm256_andnot_ps(_mm256_cmp_ps(x.v, limit.v, _CMP_LT_OQ), a.v)};
}

#elif defined(PAMX_SIMD_NEON)

inline F8 F8::splat(float x) { return {{vdupq_n_f32(x), vdupq_n_f32(x)}}; }
inline F8 F8::load(const float* p) { return {{vld1q_f32(p), vld1q_f32(p + 4)}}; }
inline F8 F8::load_float16(const uint16_t* p) {
  const float16x8_t h = vreinterpretq_f16_u16(vld1q_u16(p));
  return {{vcvt_f32_f16(vget_low_f16(h)), vcvt_high_f32_f16(h)}};
}
inline F8 F8::load_bfloat16(const uint16_t* p) {
  const uint16x8_t h = vld1q_u16(p);
  return {{vreinterpretq_f32_u32(vshll_n_u16(vget_low_u16(h), 16)),
           vreinterpretq_f32_u32(vshll_n_u16(vget_high_u16(h), 16))}};
}
static inline void store(float* p, F8 a) {
  vst1q_f32(p, a.v[0]);
  vst1q_f32(p + 4, a.v[1]);
}
static inline void store_float16(uint16_t* p, F8 a) {
  vst1q_u16(p, vreinterpretq_u16_f16(vcvt_high_f16_f32(vcvt_f16_f32(a.v[0]), a.v[1])));
}
#define PAMX_F8_BY_HALVES(name, call) \
  static inline F8 name(F8 a, F8 b) { return {{call(a.v[0], b.v[0]), call(a.v[1], b.v[1])}}; }
PAMX_F8_BY_HALVES(add, vaddq_f32)
PAMX_F8_BY_HALVES(sub, vsubq_f32)
PAMX_F8_BY_HALVES(mul, vmulq_f32)
PAMX_F8_BY_HALVES(div, vdivq_f32)
#undef PAMX_F8_BY_HALVES
static inline F8 max(F8 a, F8 b) {
  return {{vbslq_f32(vcgtq_f32(a.v[0], b.v[0]), a.v[0], b.v[0]),
           vbslq_f32(vcgtq_f32(a.v[1], b.v[1]), a.v[1], b.v[1])}};
}
static inline F8 fma(F8 a, F8 b, F8 c) {
  return {{vfmaq_f32(c.v[0], a.v[0], b.v[0]), vfmaq_f32(c.v[1], a.v[1], b.v[1])}};
}
static inline float sum(F8 a) {
  const float32x4_t x = vaddq_f32(a.v[0], a.v[1]);
  const float32x2_t y = vadd_f32(vget_low_f32(x), vget_high_f32(x));
  return vget_lane_f32(vpadd_f32(y, y), 0);
}
static inline F8 round_to_int(F8 a) { return {{vrndnq_f32(a.v[0]), vrndnq_f32(a.v[1])}}; }
static inline F8 power_of_two(F8 n) {
  const int32x4_t bias = vdupq_n_s32(127);
  return {{vreinterpretq_f32_s32(vshlq_n_s32(vaddq_s32(vcvtq_s32_f32(n.v[0]), bias), 23)),
           vreinterpretq_f32_s32(vshlq_n_s32(vaddq_s32(vcvtq_s32_f32(n.v[1]), bias), 23))}};
}
static inline F8 magnitude(F8 a) { return {{vabsq_f32(a.v[0]), vabsq_f32(a.v[1])}}; }
static inline F8 with_sign_of(F8 a, F8 sign) {
  const uint32x4_t bit = vdupq_n_u32(0x80000000u);
  return {{vbslq_f32(bit, sign.v[0], a.v[0]), vbslq_f32(bit, sign.v[1], a.v[1])}};
}
static inline F8 zero_below(F8 x, F8 limit, F8 a) {
  const float32x4_t zero = vdupq_n_f32(0.0f);
  return {{vbslq_f32(vcltq_f32(x.v[0], limit.v[0]), zero, a.v[0]),
           vbslq_f32(vcltq_f32(x.v[1], limit.v[1]), zero, a.v[1])}};
}

#else

inline F8 F8::splat(float x) { return {{x, x, x, x, x, x, x, x}}; }
inline F8 F8::load(const float* p) {
  F8 r;
  for (int i = 0; i < 8; ++i) r.v[i] = p[i];
  return r;
}
inline F8 F8::load_float16(const uint16_t* p) {
  F8 r;
  for (int i = 0; i < 8; ++i) r.v[i] = float16_to_float(p[i]);
  return r;
}
inline F8 F8::load_bfloat16(const uint16_t* p) {
  F8 r;
  for (int i = 0; i < 8; ++i) r.v[i] = bfloat16_to_float(p[i]);
  return r;
}
static inline void store(float* p, F8 a) {
  for (int i = 0; i < 8; ++i) p[i] = a.v[i];
}
static inline void store_float16(uint16_t* p, F8 a) {
  for (int i = 0; i < 8; ++i) p[i] = float_to_float16(a.v[i]);
}
static inline F8 add(F8 a, F8 b) {
  for (int i = 0; i < 8; ++i) a.v[i] += b.v[i];
  return a;
}
static inline F8 sub(F8 a, F8 b) {
  for (int i = 0; i < 8; ++i) a.v[i] -= b.v[i];
  return a;
}
static inline F8 mul(F8 a, F8 b) {
  for (int i = 0; i < 8; ++i) a.v[i] *= b.v[i];
  return a;
}
static inline F8 div(F8 a, F8 b) {
  for (int i = 0; i < 8; ++i) a.v[i] /= b.v[i];
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
    // A NaN has no integer; the caller's other factor is NaN then too.
    const int32_t exponent = n.v[i] == n.v[i] ? static_cast<int32_t>(n.v[i]) : 0;
    const uint32_t bits = static_cast<uint32_t>(exponent + 127) << 23;
    __builtin_memcpy(&n.v[i], &bits, 4);
  }
  return n;
}
static inline F8 magnitude(F8 a) {
  for (int i = 0; i < 8; ++i) a.v[i] = __builtin_fabsf(a.v[i]);
  return a;
}
static inline F8 with_sign_of(F8 a, F8 sign) {
  for (int i = 0; i < 8; ++i) a.v[i] = __builtin_copysignf(a.v[i], sign.v[i]);
  return a;
}
static inline F8 zero_below(F8 x, F8 limit, F8 a) {
  for (int i = 0; i < 8; ++i) a.v[i] = x.v[i] < limit.v[i] ? 0.0f : a.v[i];
  return a;
}

#endif

static inline F8 splat(float x) { return F8::splat(x); }
static inline F8 load(const float* p) { return F8::load(p); }
static inline F8 load_float16(const uint16_t* p) { return F8::load_float16(p); }
static inline F8 load_bfloat16(const uint16_t* p) { return F8::load_bfloat16(p); }
static inline void store_bfloat16(uint16_t* p, F8 a) {
  float lanes[8];
  store(lanes, a);
  for (int i = 0; i < 8; ++i) p[i] = float_to_bfloat16(lanes[i]);
}

// ---- as many lanes as the set has ---------------------------------------------------------------

#if defined(PAMX_SIMD_AVX512)

struct F16 {
  __m512 v;
  static inline F16 splat(float x) { return {_mm512_set1_ps(x)}; }
  static inline F16 load(const float* p) { return {_mm512_loadu_ps(p)}; }
  static inline F16 load_float16(const uint16_t* p) {
    return {_mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)))};
  }
  static inline F16 load_bfloat16(const uint16_t* p) {
    const __m512i wide =
        _mm512_cvtepu16_epi32(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
    return {_mm512_castsi512_ps(_mm512_slli_epi32(wide, 16))};
  }
};
static inline void store(float* p, F16 a) { _mm512_storeu_ps(p, a.v); }
static inline F16 add(F16 a, F16 b) { return {_mm512_add_ps(a.v, b.v)}; }
static inline F16 sub(F16 a, F16 b) { return {_mm512_sub_ps(a.v, b.v)}; }
static inline F16 mul(F16 a, F16 b) { return {_mm512_mul_ps(a.v, b.v)}; }
static inline F16 div(F16 a, F16 b) { return {_mm512_div_ps(a.v, b.v)}; }
static inline F16 max(F16 a, F16 b) { return {_mm512_max_ps(a.v, b.v)}; }
static inline F16 fma(F16 a, F16 b, F16 c) { return {_mm512_fmadd_ps(a.v, b.v, c.v)}; }
static inline F16 round_to_int(F16 a) {
  return {_mm512_roundscale_ps(a.v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC)};
}
static inline F16 power_of_two(F16 n) {
  const __m512i biased = _mm512_add_epi32(_mm512_cvtps_epi32(n.v), _mm512_set1_epi32(127));
  return {_mm512_castsi512_ps(_mm512_slli_epi32(biased, 23))};
}
static inline F16 magnitude(F16 a) { return {_mm512_andnot_ps(_mm512_set1_ps(-0.0f), a.v)}; }
static inline F16 with_sign_of(F16 a, F16 sign) {
  return {_mm512_or_ps(a.v, _mm512_and_ps(_mm512_set1_ps(-0.0f), sign.v))};
}
static inline F16 zero_below(F16 x, F16 limit, F16 a) {
  return {_mm512_maskz_mov_ps(_mm512_cmp_ps_mask(x.v, limit.v, _CMP_NLT_UQ), a.v)};
}
static inline F8 low_half(F16 a) { return {_mm512_castps512_ps256(a.v)}; }
static inline F8 high_half(F16 a) { return {_mm512_extractf32x8_ps(a.v, 1)}; }

using F = F16;
constexpr int kLanes = 16;

#else

using F = F8;
constexpr int kLanes = 8;

#endif

// ---- sixteen lanes ------------------------------------------------------------------------------

constexpr int kWideLanes = 16;

struct Wide {
#if defined(PAMX_SIMD_AVX512)
  F16 v;
  static inline Wide splat(float x) { return {F16::splat(x)}; }
  static inline Wide load(const float* p) { return {F16::load(p)}; }
  static inline Wide load_float16(const uint16_t* p) { return {F16::load_float16(p)}; }
  static inline Wide load_bfloat16(const uint16_t* p) { return {F16::load_bfloat16(p)}; }
#else
  F8 low, high;
  static inline Wide splat(float x) { return {F8::splat(x), F8::splat(x)}; }
  static inline Wide load(const float* p) { return {F8::load(p), F8::load(p + 8)}; }
  static inline Wide load_float16(const uint16_t* p) {
    return {F8::load_float16(p), F8::load_float16(p + 8)};
  }
  static inline Wide load_bfloat16(const uint16_t* p) {
    return {F8::load_bfloat16(p), F8::load_bfloat16(p + 8)};
  }
#endif
};

#if defined(PAMX_SIMD_AVX512)
static inline void store(float* p, Wide a) { store(p, a.v); }
static inline Wide add(Wide a, Wide b) { return {add(a.v, b.v)}; }
static inline Wide sub(Wide a, Wide b) { return {sub(a.v, b.v)}; }
static inline Wide mul(Wide a, Wide b) { return {mul(a.v, b.v)}; }
static inline Wide max(Wide a, Wide b) { return {max(a.v, b.v)}; }
static inline Wide fma(Wide a, Wide b, Wide c) { return {fma(a.v, b.v, c.v)}; }
static inline F8 fold_halves(Wide a) { return add(low_half(a.v), high_half(a.v)); }
#else
static inline void store(float* p, Wide a) {
  store(p, a.low);
  store(p + 8, a.high);
}
static inline Wide add(Wide a, Wide b) { return {add(a.low, b.low), add(a.high, b.high)}; }
static inline Wide sub(Wide a, Wide b) { return {sub(a.low, b.low), sub(a.high, b.high)}; }
static inline Wide mul(Wide a, Wide b) { return {mul(a.low, b.low), mul(a.high, b.high)}; }
static inline Wide max(Wide a, Wide b) { return {max(a.low, b.low), max(a.high, b.high)}; }
static inline Wide fma(Wide a, Wide b, Wide c) {
  return {fma(a.low, b.low, c.low), fma(a.high, b.high, c.high)};
}
static inline F8 fold_halves(Wide a) { return add(a.low, a.high); }
#endif
static inline float sum(Wide a) { return sum(fold_halves(a)); }

// ---- functions ----------------------------------------------------------------------------------

// 2^x for x <= 0, in any of the lanes' types. The polynomial is a relative minimax fit of degree
// 6 on [-0.5, 0.5] with its constant fixed at 1, made with iteratively reweighted least squares;
// in float32 its relative error is below 8e-8. Below 2^-126 the result is held there, far under
// float32's rounding of any sum that has the term 2^0 in it. NaN gives NaN.
template <class V>
static inline V exp2_nonpositive(V x) {
  x = max(V::splat(-126.0f), x);
  const V n = round_to_int(x);
  const V f = sub(x, n);
  V p = V::splat(0.00015353362f);
  p = fma(p, f, V::splat(0.0013398874f));
  p = fma(p, f, V::splat(0.009618437f));
  p = fma(p, f, V::splat(0.055503324f));
  p = fma(p, f, V::splat(0.24022648f));
  p = fma(p, f, V::splat(0.6931472f));
  p = fma(p, f, V::splat(1.0f));
  return mul(p, power_of_two(n));
}

// tanh(x) = (1 - e) / (1 + e) with e = exp(-2 |x|), and x's sign; the error is below 1e-7 of 1.
template <class V>
static inline V tanh(V x) {
  const V e = exp2_nonpositive(mul(magnitude(x), V::splat(-2.8853900817779268f)));
  const V one = V::splat(1.0f);
  return with_sign_of(div(sub(one, e), add(one, e)), x);
}

#if defined(PAMX_SIMD_AVX512)
static inline Wide exp2_nonpositive(Wide x) { return {exp2_nonpositive(x.v)}; }
static inline Wide tanh(Wide x) { return {tanh(x.v)}; }
static inline Wide zero_below(Wide x, Wide limit, Wide a) {
  return {zero_below(x.v, limit.v, a.v)};
}
#else
static inline Wide exp2_nonpositive(Wide x) {
  return {exp2_nonpositive(x.low), exp2_nonpositive(x.high)};
}
static inline Wide tanh(Wide x) { return {tanh(x.low), tanh(x.high)}; }
static inline Wide zero_below(Wide x, Wide limit, Wide a) {
  return {zero_below(x.low, limit.low, a.low), zero_below(x.high, limit.high, a.high)};
}
#endif
