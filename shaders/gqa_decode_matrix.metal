// Decode attention of grouped queries over one partition of the context, by matrix products: the
// group-sharing form of gqa_decode for groups of 7 and 8, which fill an 8x8 matrix.
//
//   grid         (kv_heads, partitions, rows) threadgroups
//   threadgroup  (32, SIMDGROUPS, 1)
//   buffers, constants, algorithm and what a row's bits depend on: as in gqa_decode.metal
//
// With 8 query heads a KV head, arithmetic on single elements takes longer than reading them does.
// Here a product of 8x8 matrices takes 8 tokens (or 8 columns) of all heads at once, the sums over
// lanes included, and keys and values are multiplied as they lie in registers. Rows and pools have
// one 16-bit type; weights stay float.
//
// A simdgroup takes every SIMDGROUPS-th step of STEP tokens. It waits for one half of a step at a
// time: the registers of a chunk of keys that was multiplied take the same chunk of the values, and
// those take the next step's keys.
#include "gqa_matrix.h"
#include "gqa_merge.h"

using namespace metal;
using namespace pamx;

template <typename P, int D, int G, int BLOCK, int STEP, int SIMDGROUPS>
[[kernel]] void gqa_decode_matrix(
    const device P* queries [[buffer(kQueries)]], const device P* key_pool [[buffer(kKeyPool)]],
    const device P* value_pool [[buffer(kValuePool)]],
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
  typedef MatrixLayout<P, D, G, BLOCK, STEP> L;
  constexpr int QUERY_PLACES = L::OUTPUTS * 32 / 4;  // float4 of threadgroup memory
  constexpr int WEIGHT_PLACES = L::HEADS * L::WEIGHTS / 4;
  constexpr int MERGE_HEADS = merge_heads(SIMDGROUPS, D, G);
  constexpr int MERGE_PLACES = MERGE_HEADS * SIMDGROUPS * D / 4;
  constexpr int LOOP_PLACES = QUERY_PLACES + SIMDGROUPS * 2 * WEIGHT_PLACES;
  constexpr int PLACES = LOOP_PLACES > MERGE_PLACES ? LOOP_PLACES : MERGE_PLACES;
  static_assert(MERGE_HEADS >= 1, "too many simdgroups");
  threadgroup float4 memory[PLACES];
  threadgroup float2 parts[G * SIMDGROUPS];

  const uint kv_head = group.x, partition = group.y;
  const uint thread_id = simdgroup * 32 + lane;
  constexpr uint THREADS = SIMDGROUPS * 32;
  const WorkRow row = work_rows[group.z];
  const Span span = span_of(row, partition, context_lens, query_starts, params);
  const ulong first_partial = partial_index(group.z, kv_head * G, partition, params);
  if (span.first >= span.end) {
    write_empty<D, G>(thread_id, THREADS, first_partial, params, partial_out, partial_stats);
    return;
  }

  const uint stride = params.kv_heads * D;  // elements from one token to the next
  const device int* table = block_tables + ulong(row.sequence) * params.max_blocks;
  const ulong own = kv_head * D + fragment_row(lane) * stride +
                    matrix_column<L>(0, 0, fragment_column(lane));
  const device P* keys = key_pool + own;
  const device P* values = value_pool + own;
  threadgroup uint* staged = (threadgroup uint*)memory;
  threadgroup float* weights =
      (threadgroup float*)(memory + QUERY_PLACES + simdgroup * 2 * WEIGHT_PLACES);

  Fragment<float> outputs[L::OUTPUTS];
#pragma unroll
  for (int i = 0; i < L::OUTPUTS; ++i) fill(outputs[i], 0.0f);
  float maxima[2] = {limits::NO_MAXIMUM, limits::NO_MAXIMUM};
  float sums[2] = {0.0f, 0.0f};  // over this lane's tokens

  // A step's simdgroup follows from its place in the partition, wherever the window begins.
  const int skipped = span.first / STEP, steps = (span.end + STEP - 1) / STEP;
  int step = skipped + (int(simdgroup) + SIMDGROUPS - skipped % SIMDGROUPS) % SIMDGROUPS;
  int ids = 0;
  ulong pages[L::PAGES];  // of the step whose keys were asked for last
  uint words[L::WORDS];
  if (step < steps) {
    locate<L, SIMDGROUPS>(ids, table, span, step, 0, stride, lane, pages);
#pragma unroll
    for (int c = 0; c < L::CHUNKS; ++c) load_chunk<P, L>(keys, pages, stride, c, words);
  }
  // Behind the first keys, so that both are on their way at once.
  stage_fragments<P, L>(queries + row.first_token * params.query_token_stride +
                            kv_head * G * params.query_head_stride,
                        params, thread_id, THREADS, staged);
  threadgroup_barrier(mem_flags::mem_threadgroup);

  for (int turn = 1; step < steps; step += SIMDGROUPS, ++turn) {
    Fragment<float> scores[L::TILES];
    score_tiles<P, L>(words, staged, values, pages, stride, lane, scores);
    // After the last step comes the partition's last once more: less work than a branch.
    const int next = min(step + SIMDGROUPS, steps - 1);
    locate<L, SIMDGROUPS>(ids, table, span, next, turn, stride, lane, pages);

    const int first_token = step * STEP;
    finish_tiles<L>(scores, span, first_token, lane, params);
    raise_tile_maxima<L>(scores, maxima, sums, lane, outputs);
    // Two turns write different weights, so that one barrier a step is enough.
    threadgroup float* turn_weights = weights + turn % 2 * (WEIGHT_PLACES * 4);
    weigh_tiles<L>(scores, maxima, lane, sums, turn_weights);
    simdgroup_barrier(mem_flags::mem_threadgroup);
    if (first_token < span.first || first_token + STEP > span.end) {
      clear_unseen_tiles<L>(span, first_token, lane, words);
    }
    accumulate_tiles<P, L>(words, turn_weights, keys, pages, stride, lane, outputs);
  }

#pragma unroll
  for (int e = 0; e < 2; ++e) {
    sums[e] = column_sum(sums[e]);
    const int head = fragment_column(lane) + e;
    if (fragment_row(lane) == 0 && head < G) {
      parts[head * SIMDGROUPS + simdgroup] = float2(maxima[e], sums[e]);
    }
  }
#pragma unroll
  for (int first_head = 0; first_head < G; first_head += MERGE_HEADS) {
    const int heads = G - first_head < MERGE_HEADS ? G - first_head : MERGE_HEADS;
    threadgroup_barrier(mem_flags::mem_threadgroup);  // what `memory` held is no longer needed
    const int h = int(fragment_row(lane)) - first_head;
    if (h >= 0 && h < heads) {
      store_tiles<L>(outputs, lane, (threadgroup float*)memory + (h * SIMDGROUPS + simdgroup) * D);
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
    write_merged<D, SIMDGROUPS>(memory, parts, first_head, heads, thread_id, first_partial, params,
                                partial_out, partial_stats);
  }
}
