// Merges the partitions of a row: the one reducer for every kernel that splits the context.
//
//   grid         (heads, rows, 1) threadgroups
//   threadgroup  (THREADS, 1, 1), and num_partitions floats of threadgroup memory at 0; THREADS is
//                REDUCER_THREADS, or twice as many where there are few heads and rows
//   buffers      kPartialOut, kPartialStats, kWorkRows, kParams, kOut of params.h; kSinks if
//                HAS_SINKS: this is where the sink of a split row is counted, once
//   constants    kHasSinks
//
// Algorithm: each partition weighs sum * exp2(maximum - top), with top the largest maximum of all
// (Dao et al., "Flash-Decoding"; Milakov and Gimelshein, arXiv:1805.02867). A partition without
// weight is not read. The order of the sums is fixed, so that a row's bits depend neither on
// THREADS nor on num_partitions, which other rows decide. A row whose partitions are all empty is
// zeros.
#include "params.h"
#include "softmax.h"
#include "types.h"

using namespace metal;
using namespace pamx;

// The one feature of the reducer: not features.h, whose other constants would have to be set.
constant bool has_sinks [[function_constant(kHasSinks)]];

constant constexpr uint WEIGHERS = limits::REDUCER_THREADS;  // threads that weigh partitions
constant constexpr uint SIMDGROUPS = WEIGHERS / limits::SIMD_WIDTH;
// Partitions that a thread asks for before it adds the first: one sequence has few threadgroups
// here, which would otherwise wait for each of hundreds.
constant constexpr uint AT_ONCE = 8;

template <typename T, uint V_DIM, uint THREADS>
[[kernel]] void split_kv_reduce(
    const device float4* partial_out [[buffer(kPartialOut)]],
    const device float2* partial_stats [[buffer(kPartialStats)]], device T* out [[buffer(kOut)]],
    const device float* sinks [[buffer(kSinks), function_constant(has_sinks)]],
    const device WorkRow* work_rows [[buffer(kWorkRows)]],
    constant AttentionParams& params [[buffer(kParams)]],
    threadgroup float* weights [[threadgroup(0)]], uint3 group [[threadgroup_position_in_grid]],
    uint thread_index [[thread_index_in_threadgroup]],
    uint simdgroup [[simdgroup_index_in_threadgroup]], ushort lane [[thread_index_in_simdgroup]]) {
  constexpr uint COLUMNS = V_DIM / 4;
  // Partitions that are added at the same time, by as many rows of threads or by half of them.
  constexpr uint TURNS = WEIGHERS / COLUMNS * 2;
  constexpr uint EACH = 2 * WEIGHERS / THREADS;  // turns of a thread
  static_assert(EACH == 1 || EACH == 2, "once or twice the threads");
  threadgroup float2 parts[SIMDGROUPS];
  threadgroup float4 outputs[TURNS * COLUMNS];
  const uint head = group.x;
  const uint partitions = params.num_partitions;
  const ulong first = (ulong(group.y) * params.heads + head) * partitions;

  const uint weighed = simdgroup < SIMDGROUPS ? partitions : 0;
  float top = limits::NO_MAXIMUM;
  for (uint i = thread_index; i < weighed; i += WEIGHERS) {
    top = max(top, partial_stats[first + i].x);
  }
  top = simd_max(top);
  if (lane == 0 && simdgroup < SIMDGROUPS) parts[simdgroup].x = top;
  threadgroup_barrier(mem_flags::mem_threadgroup);
  for (uint i = 0; i < SIMDGROUPS; ++i) top = max(top, parts[i].x);

  float sum = 0.0f;
  for (uint i = thread_index; i < weighed; i += WEIGHERS) {
    const float2 part = partial_stats[first + i];
    const float weight = part.y * rescale(part.x, top);
    weights[i] = weight;
    sum += weight;
  }
  sum = simd_sum(sum);
  if (lane == 0 && simdgroup < SIMDGROUPS) parts[simdgroup].y = sum;
  threadgroup_barrier(mem_flags::mem_threadgroup);
  float2 whole = float2(top, 0.0f);
  for (uint i = 0; i < SIMDGROUPS; ++i) whole.y += parts[i].y;

  const uint column = thread_index % COLUMNS, turn = thread_index / COLUMNS;
  float4 sums[EACH];
#pragma unroll
  for (uint j = 0; j < EACH; ++j) sums[j] = float4(0.0f);
  if (turn < TURNS / EACH) {
    for (uint i = turn; i < partitions; i += TURNS / EACH * AT_ONCE) {
      float weight[AT_ONCE];
      float4 partial[AT_ONCE];
#pragma unroll
      for (uint u = 0; u < AT_ONCE; ++u) {
        const uint one = i + u * (TURNS / EACH);
        weight[u] = one < partitions ? weights[one] : 0.0f;
        partial[u] = float4(0.0f);
        if (weight[u] != 0.0f) partial[u] = partial_out[(first + one) * COLUMNS + column];
      }
#pragma unroll
      for (uint u = 0; u < AT_ONCE; ++u) {
        sums[u % EACH] = fma(float4(weight[u]), partial[u], sums[u % EACH]);
      }
    }
  }
  // The later half of the turns is added to the earlier one, then turn after turn.
  float4 output = sums[0];
  if (EACH == 2) {
    output += sums[EACH - 1];
  } else {
    if (turn >= TURNS / 2 && turn < TURNS) outputs[turn * COLUMNS + column] = output;
    threadgroup_barrier(mem_flags::mem_threadgroup);
    if (turn < TURNS / 2) output += outputs[(turn + TURNS / 2) * COLUMNS + column];
  }
  if (turn < TURNS / 2) outputs[turn * COLUMNS + column] = output;
  threadgroup_barrier(mem_flags::mem_threadgroup);
  if (turn != 0) return;

  for (uint i = 1; i < TURNS / 2; ++i) output += outputs[i * COLUMNS + column];
  if (has_sinks) {
    whole = with_sink(whole, sinks[head]);
    output *= rescale(top, whole.x);
  }
  const ulong token = work_rows[group.y].first_token;
  store4(out + (token * params.heads + head) * V_DIM + column * 4, output * inverse(whole.y));
}
