// Sums over the lanes of a simdgroup in fewer shuffles than one butterfly for each value.
#pragma once

#include <metal_simdgroup>
#include <metal_stdlib>

namespace pamx {

using namespace metal;

// Reduce-scatter over groups of LANES lanes (a power of two): value i of lane `lane` becomes, in
// values[0], the sum over the lane's group of values[lane % LANES]. LANES - 1 shuffles where LANES
// butterflies take LANES * log2(LANES). The order of the additions depends on nothing.
template <ushort LANES>
inline float reduce_scatter(thread float* values, ushort lane) {
#pragma unroll
  for (ushort half_group = LANES / 2; half_group >= 1; half_group /= 2) {
    const bool upper = (lane & half_group) != 0;
#pragma unroll
    for (ushort i = 0; i < LANES / 2; ++i) {
      if (i < half_group) {
        // Copies: a choice between elements may become one between their addresses, which takes the
        // array out of registers.
        const float low = values[i], high = values[i + half_group];
        const float received = simd_shuffle_xor(upper ? low : high, half_group);
        values[i] = (upper ? high : low) + received;
      }
    }
  }
  return values[0];
}

// The sum over lanes that are equal modulo LANES, a power of two; every lane gets it.
template <ushort LANES>
inline float sum_of_like_lanes(float value) {
#pragma unroll
  for (ushort step = LANES; step < 32; step *= 2) value += simd_shuffle_xor(value, step);
  return value;
}

}  // namespace pamx
