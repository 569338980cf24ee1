// Unified variable-length paged attention: one launch serves prefill and decode rows.
//
// The path that is always right: any head size, group size, page size and mix of rows. A work row
// is one query token; a row's bits depend on nothing but its own sequence, position and partition
// size.
//
//   grid         (heads, partitions, rows) threadgroups; unsplit: one partition, the whole row
//   threadgroup  (32, UNIFIED_SIMDGROUPS, 1)
//   buffers      AttentionBuffer of params.h. paged_attention writes kOut and folds the sink in;
//                paged_attention_split writes kPartialOut and kPartialStats instead
//   constants    kHasWindow, kHasSoftcap, kBlockSize; unsplit also kHasSinks
//
// Algorithm: attention with an online softmax (Dao et al., "FlashAttention", arXiv:2205.14135),
// split over the context with a later merge (Dao et al., "Flash-Decoding"), K and V addressed
// through block tables (Kwon et al., "PagedAttention", arXiv:2309.06180).
//
// A simdgroup takes every UNIFIED_SIMDGROUPS-th block of 32 tokens, counted from the partition's
// start. K: a few lanes read a token's row, 16 bytes each, and a reduce-scatter leaves each lane
// with the score of one token, so that a block costs one exponential a lane. V: a lane keeps the
// same dimensions throughout, and the lanes of a token take its weight by simd_shuffle. Tokens that
// the query does not see are replaced by one that it does see, and their scores masked: nothing
// outside the visible range is ever read, neither its table entry nor its slots.
#include "features.h"
#include "params.h"
#include "simd.h"
#include "softmax.h"
#include "types.h"

using namespace metal;
using namespace pamx;

constant constexpr uint TOKENS = limits::UNIFIED_TOKENS;
constant constexpr uint SIMDGROUPS = limits::UNIFIED_SIMDGROUPS;

// Lanes that share a row of DIM elements, eight each: the fewest that take it at once, a power of
// two, up to MOST; where those are too few, each takes several chunks of eight.
template <uint DIM, uint MOST>
struct RowLanes {
  static constant constexpr const uint chunks = DIM / 8;
  static constant constexpr const uint lanes = chunks > 16 && MOST > 16 ? 32
                                               : chunks > 8 && MOST > 8 ? 16
                                               : chunks > 4             ? 8
                                               : chunks > 2             ? 4
                                                                        : chunks;
  static constant constexpr const uint chunks_a_lane = (chunks + lanes - 1) / lanes;
};

// Which tokens of its sequence a query sees within a partition: first..last, none if first > last.
struct Visible {
  int start;  // of the partition
  int first;
  int last;
};

inline Visible visible_to(const WorkRow row, uint partition_index, const device int* context_lens,
                          const device int* query_starts, constant AttentionParams& params) {
  Visible seen;
  const int queries = query_starts[row.sequence + 1] - query_starts[row.sequence];
  const int position =
      context_lens[row.sequence] - queries + (int(row.first_token) - query_starts[row.sequence]);
  seen.start = int(partition_index * params.partition);
  seen.first = seen.start;
  seen.last = position;
  if (params.partition != 0) seen.last = min(position, seen.start + int(params.partition) - 1);
  if (has_window) seen.first = max(seen.first, position - int(params.window) + 1);
  return seen;
}

// Attention of one head over the visible tokens, by the whole threadgroup. On return, after a
// barrier, `parts` and `outputs` hold every simdgroup's result, the outputs not normalised.
template <typename T, typename P, uint K_DIM, uint V_DIM>
inline void attend(const device T* query, const device P* keys, const device P* values,
                   const device int* table, const Visible seen, uint kv_head,
                   constant AttentionParams& params, threadgroup float2* parts,
                   threadgroup float4* outputs, uint simdgroup, ushort lane) {
  typedef RowLanes<K_DIM, K_DIM <= 256 ? 8 : 16> Keys;
  typedef RowLanes<V_DIM, 32> Values;
  constexpr ushort K_LANES = Keys::lanes, K_CHUNKS = Keys::chunks_a_lane;
  constexpr ushort V_LANES = Values::lanes, V_CHUNKS = Values::chunks_a_lane;
  constexpr ushort K_TOKENS = 32 / K_LANES;  // read at once
  constexpr ushort V_TOKENS = 32 / V_LANES;
  const ushort k_lane = lane % K_LANES, k_token = lane / K_LANES;
  const ushort v_lane = lane % V_LANES, v_token = lane / V_LANES;
  // After the reduce-scatter this lane has the score of token `own` of each block.
  const ushort own = k_lane * K_TOKENS + k_token;

  const float scale = params.scale_log2;
  Eight q[K_CHUNKS];
#pragma unroll
  for (ushort c = 0; c < K_CHUNKS; ++c) {
    const ushort chunk = c * K_LANES + k_lane;
    q[c].low = q[c].high = float4(0.0f);
    if (chunk < Keys::chunks) {
      q[c] = load8_unaligned(query + chunk * 8);
      q[c].low *= scale;
      q[c].high *= scale;
    }
  }
  Eight output[V_CHUNKS];
#pragma unroll
  for (ushort c = 0; c < V_CHUNKS; ++c) output[c].low = output[c].high = float4(0.0f);
  float maximum = limits::NO_MAXIMUM, sum = 0.0f;  // sum: of this lane's tokens alone

  // A block of tokens that lies wholly before the window is passed over by whose turn it is.
  const int skipped = seen.first > seen.start ? (seen.first - seen.start) / int(TOKENS) : 0;
  const int turn = (int(simdgroup) - skipped) & int(SIMDGROUPS - 1);
  for (int block = seen.start + (skipped + turn) * int(TOKENS); block <= seen.last;
       block += int(SIMDGROUPS * TOKENS)) {
    const int mine = clamp(block + int(lane), seen.first, seen.last);
    const int page = table[uint(mine) / tokens_a_block];

    float scores[K_LANES];
#pragma unroll
    for (ushort u = 0; u < K_LANES; ++u) {
      const ushort in_block = u * K_TOKENS + k_token;
      const uint token = uint(clamp(block + int(in_block), seen.first, seen.last));
      const ulong slot =
          ulong(uint(simd_shuffle(page, in_block))) * tokens_a_block + token % tokens_a_block;
      const device P* row = keys + (slot * params.kv_heads + kv_head) * K_DIM;
      float4 products = float4(0.0f);
#pragma unroll
      for (ushort c = 0; c < K_CHUNKS; ++c) {
        const ushort chunk = c * K_LANES + k_lane;
        if (chunk < Keys::chunks) {
          const Eight k = load8(row + chunk * 8);
          products = fma(q[c].low, k.low, products);
          products = fma(q[c].high, k.high, products);
        }
      }
      scores[u] = (products.x + products.y) + (products.z + products.w);
    }
    float score = reduce_scatter<K_LANES>(scores, lane);
    if (has_softcap) score = capped(score, params.softcap_log2);
    const int token = block + int(own);
    if (token < seen.first || token > seen.last) score = limits::MASKED;

    const float top = max(maximum, simd_max(score));
    const float correction = rescale(maximum, top);
    const float weight = exp2(score - top);
    sum = sum * correction + weight;
    maximum = top;

#pragma unroll
    for (ushort c = 0; c < V_CHUNKS; ++c) {
      output[c].low *= correction;
      output[c].high *= correction;
    }
#pragma unroll(4)
    for (ushort v = 0; v < ushort(TOKENS); v += V_TOKENS) {
      const ushort in_block = v + v_token;
      const uint token = uint(clamp(block + int(in_block), seen.first, seen.last));
      const ulong slot =
          ulong(uint(simd_shuffle(page, in_block))) * tokens_a_block + token % tokens_a_block;
      // Lane k_lane + k_token * K_LANES owns token k_lane * K_TOKENS + k_token.
      const float w =
          simd_shuffle(weight, ushort(in_block / K_TOKENS + in_block % K_TOKENS * K_LANES));
      const device P* row = values + (slot * params.kv_heads + kv_head) * V_DIM;
#pragma unroll
      for (ushort c = 0; c < V_CHUNKS; ++c) {
        const ushort chunk = c * V_LANES + v_lane;
        if (chunk < Values::chunks) {
          const Eight x = load8(row + chunk * 8);
          output[c].low = fma(float4(w), x.low, output[c].low);
          output[c].high = fma(float4(w), x.high, output[c].high);
        }
      }
    }
  }

  sum = simd_sum(sum);
#pragma unroll
  for (ushort c = 0; c < V_CHUNKS; ++c) {
#pragma unroll
    for (ushort e = 0; e < 4; ++e) {
      output[c].low[e] = sum_of_like_lanes<V_LANES>(output[c].low[e]);
      output[c].high[e] = sum_of_like_lanes<V_LANES>(output[c].high[e]);
    }
    const ushort chunk = c * V_LANES + v_lane;
    if (v_token == 0 && chunk < Values::chunks) {
      outputs[(simdgroup * Values::chunks + chunk) * 2] = output[c].low;
      outputs[(simdgroup * Values::chunks + chunk) * 2 + 1] = output[c].high;
    }
  }
  if (lane == 0) parts[simdgroup] = float2(maximum, sum);
  threadgroup_barrier(mem_flags::mem_threadgroup);
}

inline float2 merged_part(const threadgroup float2* parts) {
  float2 all = empty_part();
  for (uint i = 0; i < SIMDGROUPS; ++i) all.x = max(all.x, parts[i].x);
  for (uint i = 0; i < SIMDGROUPS; ++i) all.y += parts[i].y * rescale(parts[i].x, all.x);
  return all;
}

// Elements column * 4 to column * 4 + 3 of the output, relative to the maximum `top`.
template <uint V_DIM>
inline float4 merged_output(const threadgroup float2* parts, const threadgroup float4* outputs,
                            float top, uint column) {
  float4 all = float4(0.0f);
  for (uint i = 0; i < SIMDGROUPS; ++i) {
    all = fma(float4(rescale(parts[i].x, top)), outputs[i * (V_DIM / 4) + column], all);
  }
  return all;
}

template <typename T, typename P, uint K_DIM, uint V_DIM>
[[kernel]] void paged_attention(
    const device T* queries [[buffer(kQueries)]], const device P* keys [[buffer(kKeyPool)]],
    const device P* values [[buffer(kValuePool)]],
    const device int* block_tables [[buffer(kBlockTables)]],
    const device int* context_lens [[buffer(kContextLens)]],
    const device int* query_starts [[buffer(kQueryStarts)]], device T* out [[buffer(kOut)]],
    const device float* sinks [[buffer(kSinks), function_constant(has_sinks)]],
    const device WorkRow* work_rows [[buffer(kWorkRows)]],
    constant AttentionParams& params [[buffer(kParams)]],
    uint3 group [[threadgroup_position_in_grid]], uint simdgroup [[simdgroup_index_in_threadgroup]],
    ushort lane [[thread_index_in_simdgroup]]) {
  threadgroup float2 parts[SIMDGROUPS];
  threadgroup float4 outputs[SIMDGROUPS * V_DIM / 4];
  const uint head = group.x;
  const WorkRow row = work_rows[group.z];
  const Visible seen = visible_to(row, 0, context_lens, query_starts, params);
  attend<T, P, K_DIM, V_DIM>(
      queries + row.first_token * params.query_token_stride + head * params.query_head_stride, keys,
      values, block_tables + ulong(row.sequence) * params.max_blocks, seen,
      head / (params.heads / params.kv_heads), params, parts, outputs, simdgroup, lane);

  float2 part = merged_part(parts);
  if (has_sinks) part = with_sink(part, sinks[head]);
  const float norm = inverse(part.y);
  device T* to = out + (ulong(row.first_token) * params.heads + head) * V_DIM;
  for (uint i = simdgroup * 32 + lane; i < V_DIM / 4; i += SIMDGROUPS * 32) {
    store4(to + i * 4, merged_output<V_DIM>(parts, outputs, part.x, i) * norm);
  }
}

template <typename T, typename P, uint K_DIM, uint V_DIM>
[[kernel]] void paged_attention_split(const device T* queries [[buffer(kQueries)]],
                                      const device P* keys [[buffer(kKeyPool)]],
                                      const device P* values [[buffer(kValuePool)]],
                                      const device int* block_tables [[buffer(kBlockTables)]],
                                      const device int* context_lens [[buffer(kContextLens)]],
                                      const device int* query_starts [[buffer(kQueryStarts)]],
                                      device float* partial_out [[buffer(kPartialOut)]],
                                      device float2* partial_stats [[buffer(kPartialStats)]],
                                      const device WorkRow* work_rows [[buffer(kWorkRows)]],
                                      constant AttentionParams& params [[buffer(kParams)]],
                                      uint3 group [[threadgroup_position_in_grid]],
                                      uint simdgroup [[simdgroup_index_in_threadgroup]],
                                      ushort lane [[thread_index_in_simdgroup]]) {
  threadgroup float2 parts[SIMDGROUPS];
  threadgroup float4 outputs[SIMDGROUPS * V_DIM / 4];
  const uint head = group.x;
  const WorkRow row = work_rows[group.z];
  const Visible seen = visible_to(row, group.y, context_lens, query_starts, params);
  attend<T, P, K_DIM, V_DIM>(
      queries + row.first_token * params.query_token_stride + head * params.query_head_stride, keys,
      values, block_tables + ulong(row.sequence) * params.max_blocks, seen,
      head / (params.heads / params.kv_heads), params, parts, outputs, simdgroup, lane);

  const float2 part = merged_part(parts);
  const float norm = inverse(part.y);
  const ulong index = (ulong(group.z) * params.heads + head) * params.num_partitions + group.y;
  for (uint i = simdgroup * 32 + lane; i < V_DIM / 4; i += SIMDGROUPS * 32) {
    store4(partial_out + index * V_DIM + i * 4,
           merged_output<V_DIM>(parts, outputs, part.x, i) * norm);
  }
  if (simdgroup == 0 && lane == 0) partial_stats[index] = part;
}
