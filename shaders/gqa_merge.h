// What a threadgroup of gqa_decode writes: its simdgroups' parts of each head, as one.
#pragma once

#include <metal_stdlib>

#include "params.h"
#include "softmax.h"

namespace pamx {

using namespace metal;

// Heads that the simdgroups merge at once: as many as 16 KiB hold, a quarter of what a core has.
constexpr int merge_heads(int simdgroups, int dim, int group) {
  return 4096 / (simdgroups * dim) < group ? 4096 / (simdgroups * dim) : group;
}

// The simdgroups' parts of one head, as one.
template <int SIMDGROUPS>
inline float2 merged_part(const threadgroup float2* parts) {
  float2 whole = empty_part();
#pragma unroll
  for (int s = 0; s < SIMDGROUPS; ++s) whole.x = max(whole.x, parts[s].x);
#pragma unroll
  for (int s = 0; s < SIMDGROUPS; ++s) whole.y += parts[s].y * rescale(parts[s].x, whole.x);
  return whole;
}

// Heads [first_head, first_head + heads) of the partition; `memory` holds what each simdgroup has
// of their outputs, [heads, SIMDGROUPS, D], and parts[head * SIMDGROUPS + simdgroup] what belongs
// to it.
template <int D, int SIMDGROUPS>
inline void write_merged(const threadgroup float4* memory, const threadgroup float2* parts,
                         int first_head, int heads, uint thread_id, ulong first_partial,
                         constant AttentionParams& params, device float* partial_out,
                         device float2* partial_stats) {
  for (uint i = thread_id; i < uint(heads * D / 4); i += SIMDGROUPS * 32) {
    const uint h = i / (D / 4), column = i % (D / 4);
    const threadgroup float2* part = parts + (first_head + h) * SIMDGROUPS;
    const float2 whole = merged_part<SIMDGROUPS>(part);
    float4 sum = float4(0.0f);
#pragma unroll
    for (int s = 0; s < SIMDGROUPS; ++s) {
      const float4 one = memory[(h * SIMDGROUPS + s) * (D / 4) + column];
      sum = fma(float4(rescale(part[s].x, whole.x)), one, sum);
    }
    const ulong partial = first_partial + (first_head + h) * params.num_partitions;
    *(device float4*)(partial_out + partial * D + column * 4) = sum * inverse(whole.y);
    if (column == 0) partial_stats[partial] = whole;
  }
}

// A partition of which the query sees nothing.
template <int D, int G>
inline void write_empty(uint thread_id, uint threads, ulong first_partial,
                        constant AttentionParams& params, device float* partial_out,
                        device float2* partial_stats) {
  for (uint i = thread_id; i < uint(G * D / 4); i += threads) {
    const ulong partial = first_partial + i / (D / 4) * params.num_partitions;
    *(device float4*)(partial_out + partial * D + i % (D / 4) * 4) = float4(0.0f);
    if (i % (D / 4) == 0) partial_stats[partial] = empty_part();
  }
}

}  // namespace pamx
