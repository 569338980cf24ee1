// metal_math, metal_common, metal_integer, metal_geometric and metal_relational.
//
// Functions of float and half, and of their vectors; bfloat has none, it converts to float first,
// as in Metal 3.1. The vector forms are not templates, so that a swizzle converts to its argument.
#pragma once

#include "constants.hpp"
#include "packed.hpp"

namespace metal {

#define SM_EACH_SIZE(F, T, name) F(T, 2, name) F(T, 3, name) F(T, 4, name)

#define SM_VECTOR_1(T, N, name)                        \
  inline vec<T, N> name(vec<T, N> x) {                 \
    vec<T, N> r;                                       \
    for (int i = 0; i < N; ++i) r.v[i] = name(x.v[i]); \
    return r;                                          \
  }
#define SM_VECTOR_2(T, N, name)                                \
  inline vec<T, N> name(vec<T, N> x, vec<T, N> y) {            \
    vec<T, N> r;                                               \
    for (int i = 0; i < N; ++i) r.v[i] = name(x.v[i], y.v[i]); \
    return r;                                                  \
  }
#define SM_VECTOR_3(T, N, name)                                        \
  inline vec<T, N> name(vec<T, N> x, vec<T, N> y, vec<T, N> z) {       \
    vec<T, N> r;                                                       \
    for (int i = 0; i < N; ++i) r.v[i] = name(x.v[i], y.v[i], z.v[i]); \
    return r;                                                          \
  }

#define SM_FLOAT_1(name, value) \
  SM_FN float name(float x) SM_BODY(return value;) SM_EACH_SIZE(SM_VECTOR_1, float, name)
#define SM_MATH_1(name, value)                                                     \
  SM_FLOAT_1(name, value)                                                          \
  SM_FN half name(half x_) SM_BODY(const float x = float(x_); return half(value);) \
      SM_EACH_SIZE(SM_VECTOR_1, half, name)
#define SM_MATH_2(name, value)                                                                     \
  SM_FN float name(float x, float y) SM_BODY(return value;) SM_EACH_SIZE(SM_VECTOR_2, float, name) \
      SM_FN half name(half x_, half y_)                                                            \
          SM_BODY(const float x = float(x_), y = float(y_); return half(value);)                   \
              SM_EACH_SIZE(SM_VECTOR_2, half, name)

// ---- elementary functions ---------------------------------------------------------------------

#define SM_ELEMENTARY(F)                                  \
  F(exp, SM_BUILTIN(exp)(x))                              \
  F(exp2, SM_BUILTIN(exp2)(x))                            \
  F(exp10, SM_BUILTIN(exp2)(x * 3.32192809488736234787f)) \
  F(log, SM_BUILTIN(log)(x))                              \
  F(log2, SM_BUILTIN(log2)(x))                            \
  F(log10, SM_BUILTIN(log10)(x))                          \
  F(sin, SM_BUILTIN(sin)(x))                              \
  F(cos, SM_BUILTIN(cos)(x))                              \
  F(tan, SM_BUILTIN(tan)(x))                              \
  F(tanh, SM_BUILTIN(tanh)(x))                            \
  F(sqrt, SM_BUILTIN(sqrt)(x))                            \
  F(rsqrt, 1.0f / SM_BUILTIN(sqrt)(x))

SM_ELEMENTARY(SM_MATH_1)
SM_MATH_1(sinh, SM_BUILTIN(sinh)(x))
SM_MATH_1(cosh, SM_BUILTIN(cosh)(x))
SM_MATH_1(asin, SM_BUILTIN(asin)(x))
SM_MATH_1(acos, SM_BUILTIN(acos)(x))
SM_MATH_1(atan, SM_BUILTIN(atan)(x))
SM_MATH_1(floor, SM_BUILTIN(floor)(x))
SM_MATH_1(ceil, SM_BUILTIN(ceil)(x))
SM_MATH_1(trunc, SM_BUILTIN(trunc)(x))
SM_MATH_1(round, SM_BUILTIN(round)(x))
SM_MATH_1(rint, SM_BUILTIN(rint)(x))
SM_MATH_1(fract, x - SM_BUILTIN(floor)(x))
SM_MATH_1(fabs, SM_BUILTIN(fabs)(x))
SM_MATH_1(sign, x > 0.0f ? 1.0f : x < 0.0f ? -1.0f : 0.0f)
SM_MATH_1(saturate, x > 0.0f ? (x < 1.0f ? x : 1.0f) : 0.0f)
SM_MATH_2(pow, SM_BUILTIN(pow)(x, y))
SM_MATH_2(powr, SM_BUILTIN(pow)(x, y))
SM_MATH_2(fmod, SM_BUILTIN(fmod)(x, y))
SM_MATH_2(atan2, SM_BUILTIN(atan2)(x, y))
SM_MATH_2(copysign, SM_BUILTIN(copysign)(x, y))
SM_MATH_2(fmax, SM_BUILTIN(fmax)(x, y))
SM_MATH_2(fmin, SM_BUILTIN(fmin)(x, y))
SM_MATH_2(step, y < x ? 0.0f : 1.0f)

SM_FN float fma(float x, float y, float z) SM_BODY(return SM_BUILTIN(fma)(x, y, z);)
    // The exact product of two halves has 22 bits, so one fma in float and one rounding are enough.
    SM_FN half fma(half x, half y, half z)
        SM_BODY(return half(SM_BUILTIN(fma)(float(x), float(y), float(z)));)
            SM_EACH_SIZE(SM_VECTOR_3, float, fma) SM_EACH_SIZE(SM_VECTOR_3, half, fma) SM_FN
    float ldexp(float x, int k) SM_BODY(return SM_BUILTIN(ldexp)(x, k);)
// The model computes both as well as it can: only fast::max differs, and only for NaN.
#define SM_FAST(F) \
  SM_ELEMENTARY(F) \
  F(floor, SM_BUILTIN(floor)(x)) F(ceil, SM_BUILTIN(ceil)(x)) F(fabs, SM_BUILTIN(fabs)(x))
#define SM_FLOAT_2(name, value) \
  SM_FN float name(float x, float y) SM_BODY(return value;) SM_EACH_SIZE(SM_VECTOR_2, float, name)
        namespace fast {
  SM_FAST(SM_FLOAT_1)
  SM_FLOAT_2(pow, SM_BUILTIN(pow)(x, y))
  SM_FLOAT_2(max, x > y ? x : y)
  SM_FLOAT_2(min, x < y ? x : y)
  SM_FLOAT_2(fmax, x > y ? x : y)
  SM_FLOAT_2(fmin, x < y ? x : y)
  SM_FN float divide(float x, float y) SM_BODY(return x / y;)
}  // namespace fast
namespace precise {
SM_FAST(SM_FLOAT_1)
SM_FLOAT_2(pow, SM_BUILTIN(pow)(x, y))
SM_FLOAT_2(max, SM_BUILTIN(fmax)(x, y))
SM_FLOAT_2(min, SM_BUILTIN(fmin)(x, y))
SM_FLOAT_2(fmax, SM_BUILTIN(fmax)(x, y))
SM_FLOAT_2(fmin, SM_BUILTIN(fmin)(x, y))
SM_FN float divide(float x, float y) SM_BODY(return x / y;)
}  // namespace precise

// ---- relational -------------------------------------------------------------------------------

#define SM_TEST(T, N, name)                            \
  inline vec<bool, N> name(vec<T, N> x) {              \
    vec<bool, N> r;                                    \
    for (int i = 0; i < N; ++i) r.v[i] = name(x.v[i]); \
    return r;                                          \
  }
#define SM_TEST_1(name, value)                                                             \
  SM_FN bool name(float x) SM_BODY(return value;) SM_FN bool name(half x_)                 \
      SM_BODY(const float x = float(x_); return value;) SM_EACH_SIZE(SM_TEST, float, name) \
          SM_EACH_SIZE(SM_TEST, half, name)
SM_TEST_1(isnan, x != x)
SM_TEST_1(isinf, x == INFINITY || x == -INFINITY)
SM_TEST_1(isfinite, x - x == 0.0f)
SM_TEST_1(signbit, SM_BUILTIN(copysign)(1.0f, x) < 0.0f)

template <int N>
inline bool any(vec<bool, N> x) {
  bool r = false;
  for (int i = 0; i < N; ++i) r = r || x.v[i];
  return r;
}
template <int N>
inline bool all(vec<bool, N> x) {
  bool r = true;
  for (int i = 0; i < N; ++i) r = r && x.v[i];
  return r;
}

// ---- max, min, clamp, abs, select, mix of every type ------------------------------------------

#define SM_SELECT(T, N, name)                                       \
  inline vec<T, N> name(vec<T, N> x, vec<T, N> y, vec<bool, N> c) { \
    vec<T, N> r;                                                    \
    for (int i = 0; i < N; ++i) r.v[i] = c.v[i] ? y.v[i] : x.v[i];  \
    return r;                                                       \
  }
// The other operand if one is NaN, as fmax and fmin.
#define SM_ORDERED(T)                                                                          \
  SM_FN T max(T x, T y) SM_BODY(return x < y ? y : (x == x ? x : y);) SM_FN T min(T x, T y)    \
      SM_BODY(return y < x ? y : (x == x ? x : y);) SM_FN T clamp(T x, T low, T high)          \
          SM_BODY(return min(max(x, low), high);) SM_FN T abs(T x)                             \
              SM_BODY(return x < T(0) ? T(-x) : x;) SM_FN T select(T x, T y, bool c)           \
                  SM_BODY(return c ? y : x;) SM_EACH_SIZE(SM_VECTOR_2, T, max)                 \
                      SM_EACH_SIZE(SM_VECTOR_2, T, min) SM_EACH_SIZE(SM_VECTOR_3, T, clamp)    \
                          SM_EACH_SIZE(SM_VECTOR_1, T, abs) SM_EACH_SIZE(SM_SELECT, T, select) \
                              SM_FN T max3(T x, T y, T z) SM_BODY(return max(max(x, y), z);)   \
                                  SM_FN T min3(T x, T y, T z) SM_BODY(return min(min(x, y), z);)
SM_ORDERED(float)
SM_ORDERED(half)
SM_ORDERED(char)
SM_ORDERED(uchar)
SM_ORDERED(short)
SM_ORDERED(ushort)
SM_ORDERED(int)
SM_ORDERED(uint)
SM_ORDERED(long)
SM_ORDERED(ulong)

SM_FN float mix(float x, float y, float a) SM_BODY(return x + (y - x) * a;) SM_FN half
    mix(half x, half y, half a) SM_BODY(return x + (y - x) * a;)
        SM_EACH_SIZE(SM_VECTOR_3, float, mix) SM_EACH_SIZE(SM_VECTOR_3, half, mix)

// ---- integers ---------------------------------------------------------------------------------

#define SM_INTEGER(T, bits)                                                                    \
  SM_FN T popcount(T x) SM_BODY(                                                               \
      return T(SM_POPCOUNT((unsigned long long)x & (~0ull >> (64 - bits))));) SM_FN T clz(T x) \
      SM_BODY(const unsigned long long u = (unsigned long long)x & (~0ull >> (64 - bits));     \
              return T(u ? SM_CLZ(u) - (64 - bits) : bits);) SM_FN T ctz(T x)                  \
          SM_BODY(const unsigned long long u = (unsigned long long)x & (~0ull >> (64 - bits)); \
                  return T(u ? SM_CTZ(u) : bits);) SM_FN T absdiff(T x, T y)                   \
              SM_BODY(return x < y ? T(y - x) : T(x - y);)
            SM_INTEGER(char, 8) SM_INTEGER(uchar, 8) SM_INTEGER(short, 16) SM_INTEGER(ushort, 16)
                SM_INTEGER(int, 32) SM_INTEGER(uint, 32) SM_INTEGER(long, 64)
                    SM_INTEGER(ulong, 64) SM_FN int mulhi(int x, int y)
                        SM_BODY(return int((long(x) * long(y)) >> 32);) SM_FN uint
    mulhi(uint x, uint y) SM_BODY(return uint((ulong(x) * ulong(y)) >> 32);)

// ---- geometry ---------------------------------------------------------------------------------

#define SM_DOT(T, N, name)                                  \
  inline T name(vec<T, N> x, vec<T, N> y) {                 \
    T r = T(x.v[0] * y.v[0]);                               \
    for (int i = 1; i < N; ++i) r = T(r + x.v[i] * y.v[i]); \
    return r;                                               \
  }                                                         \
  inline T length_squared(vec<T, N> x) { return name(x, x); }
        SM_EACH_SIZE(SM_DOT, float, dot) SM_EACH_SIZE(SM_DOT, half, dot) SM_FN
    float length(float2 x) SM_BODY(return sqrt(dot(x, x));) SM_FN float length(float3 x)
        SM_BODY(return sqrt(dot(x, x));) SM_FN float length(float4 x)
            SM_BODY(return sqrt(dot(x, x));)

}  // namespace metal
