// Elements of a pool as they are loaded: 32-bit words, widened to float only where they are used.
//
// A load that has to be waited for later keeps its registers until then; 16-bit elements take half
// as many of them unwidened.
#pragma once

#include <metal_stdlib>

#include "types.h"

namespace pamx {

using namespace metal;

// COUNT words from an address that is a multiple of their size, in one load.
template <int COUNT>
struct Words;

template <>
struct Words<1> {
  static inline void load(const device void* from, thread uint* to) {
    to[0] = *(const device uint*)from;
  }
};

template <>
struct Words<2> {
  static inline void load(const device void* from, thread uint* to) {
    const uint2 words = *(const device uint2*)from;
    to[0] = words.x;
    to[1] = words.y;
  }
};

template <>
struct Words<4> {
  static inline void load(const device void* from, thread uint* to) {
    const uint4 words = *(const device uint4*)from;
    to[0] = words.x;
    to[1] = words.y;
    to[2] = words.z;
    to[3] = words.w;
  }
};

// Elements 2 * i and 2 * i + 1 of a row that lies in words.
template <typename P>
struct Elements {
  static inline float2 pair(thread const uint* words, int i) { return Pair<P>::unpack(words[i]); }
};

template <>
struct Elements<float> {
  static inline float2 pair(thread const uint* words, int i) {
    return float2(as_type<float>(words[i * 2]), as_type<float>(words[i * 2 + 1]));
  }
};

}  // namespace pamx
