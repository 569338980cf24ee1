// vec<T, N> with swizzles, and the names float4, half2 and so on.
//
// A swizzle is a union member that overlays the vector. It reads as a vector and, if no component
// occurs twice, takes one. swizzles.inc lists all of them; softmetal/swizzles.py writes it.
#pragma once

#include "traits.hpp"

namespace metal {

template <class T, int N>
struct vec;

template <class V, class T, int N, int... I>
struct sm_read_swizzle {
  typedef V sm_vector;
  T d[N];
  operator V() const {
    const int from[] = {I...};
    V r;
    for (int i = 0; i < int(sizeof...(I)); ++i) r.v[i] = d[from[i]];
    return r;
  }
  V operator-() const { return -V(*this); }
  T operator[](int i) const { return V(*this).v[i]; }
};

template <class V, class T, int N, int... I>
struct sm_swizzle {
  typedef V sm_vector;
  T d[N];
  operator V() const {
    const int from[] = {I...};
    V r;
    for (int i = 0; i < int(sizeof...(I)); ++i) r.v[i] = d[from[i]];
    return r;
  }
  V operator-() const { return -V(*this); }
  T operator[](int i) const { return V(*this).v[i]; }
  sm_swizzle& operator=(const V& values) {
    const int to[] = {I...};
    const V copy = values;
    for (int i = 0; i < int(sizeof...(I)); ++i) d[to[i]] = copy.v[i];
    return *this;
  }
  sm_swizzle& operator=(const sm_swizzle& other) { return *this = V(other); }
  sm_swizzle& operator+=(const V& b) { return *this = V(*this) + b; }
  sm_swizzle& operator-=(const V& b) { return *this = V(*this) - b; }
  sm_swizzle& operator*=(const V& b) { return *this = V(*this) * b; }
  sm_swizzle& operator/=(const V& b) { return *this = V(*this) / b; }
};

// A scalar operand is converted to the vector's element type, unless that would narrow a float.
template <class T, class S>
struct sm_scalar : enable_if<is_arithmetic<S>::value, T> {
  static_assert(!is_floating_point<S>::value ||
                    (is_floating_point<T>::value && (sizeof(S) <= sizeof(T))),
                "a wider scalar meets a narrower vector: convert it first");
};

#define SM_ARITHMETIC(OP, N)                                  \
  friend vec operator OP(const vec& a, const vec& b) {        \
    vec r;                                                    \
    for (int i = 0; i < N; ++i) r.v[i] = T(a.v[i] OP b.v[i]); \
    return r;                                                 \
  }                                                           \
  template <class S, class = typename sm_scalar<T, S>::type>  \
  friend vec operator OP(const vec& a, S b) {                 \
    return a OP vec(T(b));                                    \
  }                                                           \
  template <class S, class = typename sm_scalar<T, S>::type>  \
  friend vec operator OP(S a, const vec& b) {                 \
    return vec(T(a)) OP b;                                    \
  }                                                           \
  vec& operator OP## = (const vec& b) {                       \
    for (int i = 0; i < N; ++i) v[i] = T(v[i] OP b.v[i]);     \
    return *this;                                             \
  }

#define SM_COMPARISON(OP, N)                                    \
  friend vec<bool, N> operator OP(const vec& a, const vec& b) { \
    vec<bool, N> r;                                             \
    for (int i = 0; i < N; ++i) r.v[i] = a.v[i] OP b.v[i];      \
    return r;                                                   \
  }                                                             \
  template <class S, class = typename sm_scalar<T, S>::type>    \
  friend vec<bool, N> operator OP(const vec& a, S b) {          \
    return a OP vec(T(b));                                      \
  }

#if defined(SM_CHECK) && !defined(SM_CONSTANT_IS_DEVICE)
// C++ for OpenCL does not convert __constant to the generic address space of `const vec&`.
#define SM_FROM_CONSTANT(N)                          \
  vec(const constant vec& from) {                    \
    for (int i = 0; i < N; ++i) v[i] = from.v[i];    \
  }                                                  \
  template <class U>                                 \
  explicit vec(const constant vec<U, N>& from) {     \
    for (int i = 0; i < N; ++i) v[i] = T(from.v[i]); \
  }
#else
#define SM_FROM_CONSTANT(N)
#endif

#define SM_VECTOR_MEMBERS(N)                                 \
  typedef T sm_element;                                      \
  vec() {}                                                   \
  vec(const vec& from){SM_COPY_ELEMENTS(N, from)} vec(T s) { \
    for (int i = 0; i < N; ++i) v[i] = s;                    \
  }                                                          \
  template <class U>                                         \
  explicit vec(const vec<U, N>& from_) {                     \
    const vec<U, N> from = from_;                            \
    for (int i = 0; i < N; ++i) v[i] = T(from.v[i]);         \
  }                                                          \
  SM_FROM_CONSTANT(N)                                        \
  vec& operator=(const vec& from) {                          \
    SM_COPY_ELEMENTS(N, from)                                \
    return *this;                                            \
  }                                                          \
  T& operator[](int i) { return v[i]; }                      \
  T operator[](int i) const { return v[i]; }                 \
  SM_ARITHMETIC(+, N)                                        \
  SM_ARITHMETIC(-, N)                                        \
  SM_ARITHMETIC(*, N)                                        \
  SM_ARITHMETIC(/, N)                                        \
  SM_ARITHMETIC(%, N)                                        \
  SM_ARITHMETIC(&, N)                                        \
  SM_ARITHMETIC(|, N)                                        \
  SM_ARITHMETIC(^, N)                                        \
  SM_ARITHMETIC(<<, N)                                       \
  SM_ARITHMETIC(>>, N)                                       \
  SM_COMPARISON(<, N)                                        \
  SM_COMPARISON(>, N)                                        \
  SM_COMPARISON(<=, N)                                       \
  SM_COMPARISON(>=, N)                                       \
  SM_COMPARISON(==, N)                                       \
  SM_COMPARISON(!=, N)                                       \
  SM_COMPARISON(&&, N)                                       \
  SM_COMPARISON(||, N)                                       \
  vec operator-() const {                                    \
    vec r;                                                   \
    for (int i = 0; i < N; ++i) r.v[i] = T(-v[i]);           \
    return r;                                                \
  }                                                          \
  vec operator~() const {                                    \
    vec r;                                                   \
    for (int i = 0; i < N; ++i) r.v[i] = T(~v[i]);           \
    return r;                                                \
  }                                                          \
  vec<bool, N> operator!() const {                           \
    vec<bool, N> r;                                          \
    for (int i = 0; i < N; ++i) r.v[i] = !v[i];              \
    return r;                                                \
  }

// More than four elements: what a thread's share of a tile is kept in; no swizzles.
template <class T, int N>
struct alignas(sizeof(T) * (N & -N)) vec {
  T v[N];
  SM_VECTOR_MEMBERS(N)
};

template <class T>
struct alignas(2 * sizeof(T)) vec<T, 2> {
  union {
    T v[2];
    struct {
      T x, y;
    };
    struct {
      T r, g;
    };
#define SM_SWIZZLES 2
#include "swizzles.inc"
#undef SM_SWIZZLES
  };
  SM_VECTOR_MEMBERS(2)
  constexpr vec(T a, T b) : v{a, b} {}
};

template <class T>
struct alignas(4 * sizeof(T)) vec<T, 3> {
  union {
    T v[3];
    struct {
      T x, y, z;
    };
    struct {
      T r, g, b;
    };
#define SM_SWIZZLES 3
#include "swizzles.inc"
#undef SM_SWIZZLES
  };
  SM_VECTOR_MEMBERS(3)
  constexpr vec(T a, T b, T c) : v{a, b, c} {}
  vec(const vec<T, 2>& a, T b) : vec(a.v[0], a.v[1], b) {}
  vec(T a, const vec<T, 2>& b) : vec(a, b.v[0], b.v[1]) {}
};

template <class T>
struct alignas(4 * sizeof(T)) vec<T, 4> {
  union {
    T v[4];
    struct {
      T x, y, z, w;
    };
    struct {
      T r, g, b, a;
    };
#define SM_SWIZZLES 4
#include "swizzles.inc"
#undef SM_SWIZZLES
  };
  SM_VECTOR_MEMBERS(4)
  constexpr vec(T a, T b, T c, T d) : v{a, b, c, d} {}
  vec(const vec<T, 2>& a, const vec<T, 2>& b) : vec(a.v[0], a.v[1], b.v[0], b.v[1]) {}
  vec(const vec<T, 2>& a, T b, T c) : vec(a.v[0], a.v[1], b, c) {}
  vec(T a, const vec<T, 2>& b, T c) : vec(a, b.v[0], b.v[1], c) {}
  vec(T a, T b, const vec<T, 2>& c) : vec(a, b, c.v[0], c.v[1]) {}
  vec(const vec<T, 3>& a, T b) : vec(a.v[0], a.v[1], a.v[2], b) {}
  vec(T a, const vec<T, 3>& b) : vec(a, b.v[0], b.v[1], b.v[2]) {}
};

#undef SM_ARITHMETIC
#undef SM_COMPARISON
#undef SM_VECTOR_MEMBERS
#undef SM_FROM_CONSTANT

// The vector that a swizzle stands for; any other type stands for itself.
template <class T>
struct sm_plain {
  typedef T type;
};
template <class V, class T, int N, int... I>
struct sm_plain<sm_swizzle<V, T, N, I...>> {
  typedef V type;
};
template <class V, class T, int N, int... I>
struct sm_plain<sm_read_swizzle<V, T, N, I...>> {
  typedef V type;
};
template <class T>
struct sm_element_of {
  typedef T type;
};
template <class T, int N>
struct sm_element_of<vec<T, N>> {
  typedef T type;
};

}  // namespace metal

#define SM_NAMES(T)       \
  namespace metal {       \
  typedef vec<T, 2> T##2; \
  typedef vec<T, 3> T##3; \
  typedef vec<T, 4> T##4; \
  }                       \
  using metal::T##2;      \
  using metal::T##3;      \
  using metal::T##4;
SM_NAMES(float)
SM_NAMES(half)
SM_NAMES(bfloat)
SM_NAMES(char)
SM_NAMES(uchar)
SM_NAMES(short)
SM_NAMES(ushort)
SM_NAMES(int)
SM_NAMES(uint)
SM_NAMES(long)
SM_NAMES(ulong)
SM_NAMES(bool)
#undef SM_NAMES
