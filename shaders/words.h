// Neighbouring elements read from device memory in one load as wide as they allow.
#pragma once

#include <metal_stdlib>

namespace pamx {

using namespace metal;

template <int WORDS>
inline void load_words(const device void* from, thread uint* words);

template <>
inline void load_words<1>(const device void* from, thread uint* words) {
  words[0] = *(const device uint*)from;
}

template <>
inline void load_words<2>(const device void* from, thread uint* words) {
  const uint2 two = *(const device uint2*)from;
  words[0] = two.x;
  words[1] = two.y;
}

template <>
inline void load_words<4>(const device void* from, thread uint* words) {
  const uint4 four = *(const device uint4*)from;
  words[0] = four.x;
  words[1] = four.y;
  words[2] = four.z;
  words[3] = four.w;
}

template <>
inline void load_words<8>(const device void* from, thread uint* words) {
  load_words<4>(from, words);
  load_words<4>((const device uint4*)from + 1, words + 4);
}

// Elements 2 * i and 2 * i + 1 of the words.
template <typename P>
inline vec<P, 2> pair_of(const thread uint* words, int i) {
  return as_type<vec<P, 2>>(words[i]);
}

template <>
inline float2 pair_of<float>(const thread uint* words, int i) {
  return float2(as_type<float>(words[2 * i]), as_type<float>(words[2 * i + 1]));
}

}  // namespace pamx
