// Rows of float, half or bfloat elements, read and written eight at a time.
//
// Loads and stores are 16 bytes wide where the element has 16 bits; they need an address that is a
// multiple of 16. Arithmetic is float everywhere: 16-bit elements are widened as they arrive.
#pragma once

#include <metal_stdlib>

#include "limits.h"

namespace pamx {

using namespace metal;

// Two 16-bit elements that share a 32-bit word, the lower half first.
template <typename T>
struct Pair;

template <>
struct Pair<half> {
  static inline float2 unpack(uint word) { return float2(as_type<half2>(word)); }
};

#if __METAL_VERSION__ >= 310
template <>
struct Pair<bfloat> {
  // A bfloat is the upper half of the float that it stands for.
  static inline float2 unpack(uint word) {
    return float2(as_type<float>(word << 16), as_type<float>(word & 0xffff0000u));
  }
};
#endif

// Eight consecutive elements of a row.
struct Eight {
  float4 low;
  float4 high;
};

template <typename T>
inline Eight unpack8(uint4 words) {
  const float2 a = Pair<T>::unpack(words.x);
  const float2 b = Pair<T>::unpack(words.y);
  const float2 c = Pair<T>::unpack(words.z);
  const float2 d = Pair<T>::unpack(words.w);
  Eight eight;
  eight.low = float4(a.x, a.y, b.x, b.y);
  eight.high = float4(c.x, c.y, d.x, d.y);
  return eight;
}

inline Eight load8(const device float* elements) {
  Eight eight;
  eight.low = *(const device float4*)elements;
  eight.high = *(const device float4*)(elements + 4);
  return eight;
}

inline Eight load8(const device half* elements) {
  return unpack8<half>(*(const device uint4*)elements);
}

#if __METAL_VERSION__ >= 310
inline Eight load8(const device bfloat* elements) {
  return unpack8<bfloat>(*(const device uint4*)elements);
}
#endif

// For rows of which nothing is known but the alignment of an element.
template <typename T>
inline Eight load8_unaligned(const device T* elements) {
  Eight eight;
  eight.low =
      float4(float(elements[0]), float(elements[1]), float(elements[2]), float(elements[3]));
  eight.high =
      float4(float(elements[4]), float(elements[5]), float(elements[6]), float(elements[7]));
  return eight;
}

// Rounds to nearest even, as every conversion to a narrower type does.
template <typename T>
inline void store4(device T* elements, float4 values) {
  typedef vec<T, 4> T4;
  *(device T4*)elements = T4(values);
}

inline void store8(device float* elements, Eight eight) {
  store4(elements, eight.low);
  store4(elements + 4, eight.high);
}

inline void store8(device half* elements, Eight eight) {
  *(device uint4*)elements =
      uint4(as_type<uint2>(half4(eight.low)), as_type<uint2>(half4(eight.high)));
}

#if __METAL_VERSION__ >= 310
inline void store8(device bfloat* elements, Eight eight) {
  *(device uint4*)elements =
      uint4(as_type<uint2>(bfloat4(eight.low)), as_type<uint2>(bfloat4(eight.high)));
}
#endif

}  // namespace pamx
