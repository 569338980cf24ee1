// Prefill over pages with 8x8 matrices.
//
// FlashAttention-2 (Dao, arXiv:2307.08691): a threadgroup keeps the output of PREFILL_TOKENS query
// tokens of one head in registers while tiles of keys and values pass through threadgroup memory;
// the softmax runs online in log2 space, and is normalised once, at the end.
//
//   grid         (heads, 1, work rows)
//   threadgroup  (32 * PREFILL_TOKENS / 8): a simdgroup holds 8 query tokens
//   buffers      params.h: AttentionBuffer; kPartialOut and kPartialStats are not read
//
// Choices, and what they rest on:
// - 8 query tokens a simdgroup. Its output takes D / 4 registers a lane, its queries D / 8 in 16
//   bits and D / 4 in 32: 48 together at (128, 16 bits), 96 at (256, 16 bits). 16 tokens would take
//   twice that, and a lane of an Apple GPU can name 128 registers. Float rows take 96 at 192 and,
//   with spills, 128 at 256.
// - 4 simdgroups, so that a tile that was fetched once serves 32 query tokens.
// - Keys lie transposed in threadgroup memory: turning them costs once what four simdgroups would
//   pay at each read.
// - Tiles begin at multiples of TILE, whatever the window and wherever the work row begins, and a
//   tile that a query does not see leaves its sums as they are: a query's bits do not depend on
//   how the prompt was cut.
#include <metal_simdgroup>
#include <metal_simdgroup_matrix>
#include <metal_stdlib>

#include "features.h"
#include "fragment.h"
#include "params.h"
#include "softmax.h"
#include "tile.h"

using namespace metal;
using namespace pamx;

// Context tokens of a tile. Keys and values of one take 9 to 18 KiB, so that several threadgroups
// share a core's memory.
constexpr int tile_tokens(int bytes_a_token) {
  return bytes_a_token <= 192 ? 32 : bytes_a_token <= 512 ? 16 : 8;
}

// Element i of 16 bytes of a row.
template <typename P>
inline P element(uint4 words, int i) {
  return as_type<vec<P, 2>>(words[i / 2])[i % 2];
}

template <>
inline float element<float>(uint4 words, int i) {
  return as_type<float>(words[i]);
}

template <typename T, typename P, int D>
[[kernel, max_total_threads_per_threadgroup(32 * limits::PREFILL_TOKENS / 8)]]
void prefill_tiled(const device T* queries [[buffer(kQueries)]],
                   const device P* key_pool [[buffer(kKeyPool)]],
                   const device P* value_pool [[buffer(kValuePool)]],
                   const device int* block_tables [[buffer(kBlockTables)]],
                   const device int* context_lens [[buffer(kContextLens)]],
                   const device int* query_starts [[buffer(kQueryStarts)]],
                   device T* out [[buffer(kOut)]],
                   const device float* sinks [[buffer(kSinks), function_constant(has_sinks)]],
                   const device WorkRow* work_rows [[buffer(kWorkRows)]],
                   constant AttentionParams& params [[buffer(kParams)]],
                   uint3 group [[threadgroup_position_in_grid]],
                   ushort simdgroup [[simdgroup_index_in_threadgroup]],
                   ushort lane [[thread_index_in_simdgroup]]) {
  constexpr int SIMDGROUPS = limits::PREFILL_TOKENS / 8;
  constexpr int TILE = tile_tokens(D * sizeof(P));
  constexpr int CHUNK = 16 / sizeof(P);
  constexpr int CHUNKS = D / CHUNK;  // of a token
  constexpr int CHUNK_GROUPS = (CHUNKS + 3) / 4;
  // Rows of the tiles in threadgroup memory, padded such that of the 8 tokens by 4 chunks that a
  // simdgroup writes at a time, and of the 8 by 8 elements that it reads, few share a bank.
  constexpr int K_ROW = TILE + 2;
  constexpr int V_ROW = D + 8;
  threadgroup P keys[D * K_ROW];                   // [D][TILE]
  threadgroup uint4 values[TILE * V_ROW / CHUNK];  // [TILE][D]
  static_assert(sizeof(keys) + sizeof(values) <= limits::THREADGROUP_MEMORY, "tiles are too large");

  const WorkRow row = work_rows[group.z];
  const Tile tile = tile_of(row, context_lens, query_starts, params);
  const uint head = group.x;
  const uint kv_head = head / (params.heads / params.kv_heads);
  const device int* table = block_tables + ulong(row.sequence) * params.max_blocks;
  const int first_seen = tile.start_of(0);
  const int end_seen = tile.end_of(tile.last());

  // This lane's elements of every fragment of query or output are token `token` of the work row.
  const ushort fragment_token = fragment_row(lane);
  const ushort column = fragment_column(lane);
  const int token = simdgroup * 8 + fragment_token;
  const bool has_token = token < tile.tokens;
  const int own_start = tile.start_of(token);
  const int own_end = tile.end_of(token);
  // What any token of the simdgroup sees, and what all of them see.
  const int last_token = min(simdgroup * 8 + 7, tile.last());
  const bool has_tokens = simdgroup * 8 < tile.tokens;
  const int any_start = tile.start_of(simdgroup * 8);
  const int any_end = tile.end_of(last_token);
  const int all_start = tile.start_of(last_token);
  const int all_end = tile.end_of(simdgroup * 8);

  Fragment<T> query[D / 8];
  {
    const device T* from = queries +
                           (row.first_token + (has_token ? token : 0)) * params.query_token_stride +
                           head * params.query_head_stride + column;
#pragma unroll
    for (int d = 0; d < D / 8; ++d) {
      query[d].thread_elements()[0] = has_token ? from[8 * d] : T(0);
      query[d].thread_elements()[1] = has_token ? from[8 * d + 1] : T(0);
    }
  }
  Fragment<float> output[D / 8];
#pragma unroll
  for (int d = 0; d < D / 8; ++d) fill(output[d], 0.0f);
  float maximum = limits::NO_MAXIMUM;
  float sum = 0.0f;  // over this lane's columns

  for (int start = first_seen / TILE * TILE; start < end_seen; start += TILE) {
    threadgroup_barrier(mem_flags::mem_threadgroup);  // nobody reads the tile before this one
    // A simdgroup fetches 4 chunks each of 8 tokens at a time; those tokens share a block.
#pragma unroll
    for (int g = 0; g < (TILE / 8 * CHUNK_GROUPS + SIMDGROUPS - 1) / SIMDGROUPS; ++g) {
      const int fetch = g * SIMDGROUPS + simdgroup;
      const int eight = fetch / CHUNK_GROUPS * 8;
      const int chunk = fetch % CHUNK_GROUPS * 4 + lane % 4;
      if (eight < TILE && chunk < CHUNKS) {
        const int in_tile = eight + lane / 4;
        const int position = start + in_tile;
        // A token that no query sees may lie in a freed page or hold NaN, whose product with a
        // weight of 0 is NaN: it becomes 0.
        uint4 key = uint4(0);
        uint4 value = uint4(0);
        if (position >= first_seen && position < end_seen) {
          const uint block = table[uint(position) / tokens_a_block];
          const ulong slot = ulong(block) * tokens_a_block + uint(position) % tokens_a_block;
          const ulong at = (slot * params.kv_heads + kv_head) * D + chunk * CHUNK;
          key = *(const device uint4*)(key_pool + at);
          value = *(const device uint4*)(value_pool + at);
        }
#pragma unroll
        for (int i = 0; i < CHUNK; ++i) {
          keys[(chunk * CHUNK + i) * K_ROW + in_tile] = element<P>(key, i);
        }
        values[in_tile * (V_ROW / CHUNK) + chunk] = value;
      }
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
    if (!has_tokens || start >= any_end || start + TILE <= any_start) continue;

    Fragment<float> score[TILE / 8];
#pragma unroll
    for (int t = 0; t < TILE / 8; ++t) fill(score[t], 0.0f);
#pragma unroll
    for (int d = 0; d < D / 8; ++d) {
      const threadgroup P* from = keys + (8 * d + fragment_token) * K_ROW + column;
#pragma unroll
      for (int t = 0; t < TILE / 8; ++t) {
        Fragment<T> key;
        set(key, *(const threadgroup vec<P, 2>*)(from + 8 * t));
        simdgroup_multiply_accumulate(score[t], query[d], key, score[t]);
      }
    }

    const bool whole = start >= all_start && start + TILE <= all_end;
    float top = maximum;
#pragma unroll
    for (int t = 0; t < TILE / 8; ++t) {
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        float logit = score[t].thread_elements()[e] * params.scale_log2;
        if (has_softcap) logit = capped(logit, params.softcap_log2);
        if (!whole) {
          const int position = start + 8 * t + column + e;
          if (position < own_start || position >= own_end) logit = limits::MASKED;
        }
        score[t].thread_elements()[e] = logit;
        top = max(top, logit);
      }
    }
    top = row_max(top);
    const float keep = rescale(maximum, top);
    maximum = top;
    sum *= keep;
#pragma unroll
    for (int t = 0; t < TILE / 8; ++t) {
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        const float weight = exp2(score[t].thread_elements()[e] - top);
        score[t].thread_elements()[e] = weight;
        sum += weight;
      }
    }

    const threadgroup P* from = (const threadgroup P*)values + fragment_token * V_ROW + column;
#pragma unroll
    for (int d = 0; d < D / 8; ++d) {
      scale(output[d], keep);
#pragma unroll
      for (int t = 0; t < TILE / 8; ++t) {
        Fragment<P> value;
        set(value, *(const threadgroup vec<P, 2>*)(from + 8 * t * V_ROW + 8 * d));
        simdgroup_multiply_accumulate(output[d], score[t], value, output[d]);
      }
    }
  }

  float2 part = float2(maximum, row_sum(sum));
  float factor = 1.0f;
  if (has_sinks) {
    part = with_sink(part, sinks[head]);
    factor = rescale(maximum, part.x);
  }
  factor *= inverse(part.y);
  if (!has_token) return;
  device T* to = out + (ulong(row.first_token + token) * params.heads + head) * D + column;
#pragma unroll
  for (int d = 0; d < D / 8; ++d) {
    typedef vec<T, 2> T2;
    *(device T2*)(to + 8 * d) =
        T2(T(output[d].thread_elements()[0] * factor), T(output[d].thread_elements()[1] * factor));
  }
}
