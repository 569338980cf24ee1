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
        const float keep = upper ? values[i + half_group] : values[i];
        const float send = upper ? values[i] : values[i + half_group];
        values[i] = keep + simd_shuffle_xor(send, half_group);
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
