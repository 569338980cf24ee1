// Decode attention of grouped queries over one partition of the context.
//
//   grid         (kv_heads, partitions, rows) threadgroups
//   threadgroup  gqa_decode: (32, SIMDGROUPS, 1); gqa_decode_heads: (32, heads / kv_heads, 1)
//   buffers      AttentionBuffer of params.h; the result goes to kPartialOut and kPartialStats, and
//                split_kv_reduce merges it. k_dim = v_dim
//   constants    kHasWindow, kHasSoftcap; the block size is a template's argument, since arrays of
//                registers depend on it
//
// Algorithm: attention with an online softmax (Dao et al., "FlashAttention", arXiv:2205.14135),
// split over the context with a later merge (Dao et al., "Flash-Decoding"), K and V addressed
// through block tables (Kwon et al., "PagedAttention", arXiv:2309.06180).
//
// A row's bits depend on its own sequence, its position and the partition size alone. Tokens that
// the query does not see are never read through the block table; slots of a page that hold them may
// hold anything.
#include "gqa_group.h"
#include "gqa_heads.h"
#include "gqa_merge.h"

using namespace metal;
using namespace pamx;

// Group-sharing form: every page is read once for all G query heads of its KV head.
//
// A simdgroup takes every SIMDGROUPS-th step of STEP tokens, and waits for no other until the end.
// As soon as a step's keys are used up, its values and the next step's keys are asked for, so that
// they arrive while scores become weights. (Values that are asked for before the scores are
// computed take registers for longer; that was slower with 8 heads and no faster with fewer.)
template <typename T, typename P, int D, int G, int BLOCK, int STEP, int SIMDGROUPS>
[[kernel]] void gqa_decode(
    const device T* queries [[buffer(kQueries)]], const device P* key_pool [[buffer(kKeyPool)]],
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
  typedef GroupLayout<P, D, G, BLOCK, STEP> L;
  constexpr int QUERY_PLACES = G * D / 4;  // float4 of threadgroup memory
  constexpr int WEIGHT_PLACES = STEP * L::HEADS / 4;
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

  const ushort key_lane = lane % L::KEY_LANES, key_token = lane / L::KEY_LANES;
  const ushort value_lane = lane % L::VALUE_LANES, value_token = lane / L::VALUE_LANES;
  const Owned owned = owned_by<L>(key_lane);
  const uint stride = params.kv_heads * D;  // elements from one token to the next
  const device int* table = block_tables + ulong(row.sequence) * params.max_blocks;
  const device P* keys =
      key_pool + kv_head * D + key_token % BLOCK * stride + key_lane * L::CHUNK;
  const device P* values = value_pool + kv_head * D + value_token * stride + value_lane * L::PIECE;
  threadgroup float* weights =
      (threadgroup float*)(memory + QUERY_PLACES + simdgroup * 2 * WEIGHT_PLACES);

  float outputs[G * L::VALUE_ELEMENTS];
#pragma unroll
  for (int i = 0; i < G * L::VALUE_ELEMENTS; ++i) outputs[i] = 0.0f;
  float maxima[L::OWN_HEADS], sums[L::OWN_HEADS];
#pragma unroll
  for (int h = 0; h < L::OWN_HEADS; ++h) {
    maxima[h] = limits::NO_MAXIMUM;
    sums[h] = 0.0f;
  }

  // A step's simdgroup follows from its place in the partition, wherever the window begins.
  const int skipped = span.first / STEP, steps = (span.end + STEP - 1) / STEP;
  int step = skipped + (int(simdgroup) + SIMDGROUPS - skipped % SIMDGROUPS) % SIMDGROUPS;
  int ids = 0;
  ulong pages[L::PAGES];  // of the step whose keys were asked for last
  uint key_words[L::KEY_WORDS], value_words[L::VALUE_WORDS];
  if (step < steps) {
    locate<L, SIMDGROUPS>(ids, table, span, step, 0, stride, lane, pages);
    load_keys<P, L>(keys, pages, stride, key_token, key_words);
  }
  // Behind the first keys, so that both are on their way at once.
  stage_queries<T, L>(queries + row.first_token * params.query_token_stride +
                          kv_head * G * params.query_head_stride,
                      params, thread_id, THREADS, memory);
  threadgroup_barrier(mem_flags::mem_threadgroup);

  for (int turn = 1; step < steps; step += SIMDGROUPS, ++turn) {
    float scores[L::SCORES];
    score<P, L>(key_words, memory, key_lane, scores);

    load_values<P, L>(values, pages, stride, value_words);
    // After the last step comes the partition's last once more: less work than a branch.
    const int next = min(step + SIMDGROUPS, steps - 1);
    locate<L, SIMDGROUPS>(ids, table, span, next, turn, stride, lane, pages);
    load_keys<P, L>(keys, pages, stride, key_token, key_words);

    ReduceScatter<L::SCORES, L::KEY_LANES>::apply(scores, lane);
    const int first_token = step * STEP;
    finish_scores<L>(scores, owned, span, first_token, key_token, params.softcap_log2);
    raise_maxima<L>(scores, maxima, sums, outputs);
    // Two turns write different weights, so that one barrier a step is enough.
    threadgroup float* turn_weights = weights + turn % 2 * (WEIGHT_PLACES * 4);
    weigh<L>(scores, maxima, owned, key_token, sums, turn_weights);
    simdgroup_barrier(mem_flags::mem_threadgroup);
    if (first_token < span.first || first_token + STEP > span.end) {
      clear_unseen<L>(span, first_token, value_token, value_words);
    }
    accumulate<P, L>(value_words, turn_weights, value_token, outputs);
  }

#pragma unroll
  for (int h = 0; h < L::OWN_HEADS; ++h) {
    sums[h] = sum_over_owners<L>(sums[h]);
    if (key_token == 0 && owned.round == 0 && owned.head + h < G) {
      parts[(owned.head + h) * SIMDGROUPS + simdgroup] = float2(maxima[h], sums[h]);
    }
  }
#pragma unroll
  for (int i = 0; i < G * L::VALUE_ELEMENTS; ++i) {
#pragma unroll
    for (int x = L::VALUE_LANES; x < 32; x *= 2) {
      outputs[i] += simd_shuffle_xor(outputs[i], ushort(x));
    }
  }
#pragma unroll
  for (int first_head = 0; first_head < G; first_head += MERGE_HEADS) {
    const int heads = G - first_head < MERGE_HEADS ? G - first_head : MERGE_HEADS;
    threadgroup_barrier(mem_flags::mem_threadgroup);  // what `memory` held is no longer needed
    if (value_token == 0) {
#pragma unroll
      for (int h = 0; h < MERGE_HEADS; ++h) {
        if (h < heads) {
          store_outputs<L>(outputs + (first_head + h) * L::VALUE_ELEMENTS, value_lane,
                           (threadgroup float*)memory + (h * SIMDGROUPS + simdgroup) * D);
        }
      }
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
    write_merged<D, SIMDGROUPS>(memory, parts, first_head, heads, thread_id, first_partial, params,
                                partial_out, partial_stats);
  }
}

// Per-head form: one simdgroup a query head of the group, which reads keys and values for itself,
// straight from device memory, without a barrier.
template <typename T, typename P, int D, int BLOCK>
[[kernel]] void gqa_decode_heads(
    const device T* queries [[buffer(kQueries)]], const device P* key_pool [[buffer(kKeyPool)]],
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
  typedef HeadRow<P, D> R;
  const uint kv_head = group.x, partition = group.y;
  const uint head = kv_head * (params.heads / params.kv_heads) + simdgroup;
  const WorkRow row = work_rows[group.z];
  const Span span = span_of(row, partition, context_lens, query_starts, params);
  const device int* table = block_tables + ulong(row.sequence) * params.max_blocks;
  const uint stride = params.kv_heads * D;  // elements from one token to the next
  const bool active = lane < R::LANES;
  const uint first_element = uint(active ? lane : R::LANES - 1) * R::ELEMENTS;

  HeadState<R> state;
  const device T* query = queries + row.first_token * params.query_token_stride +
                          head * params.query_head_stride + first_element;
#pragma unroll
  for (int e = 0; e < R::ELEMENTS; ++e) {
    state.query[e] = active ? float(query[e]) * params.scale_log2 : 0.0f;
    state.output[e] = 0.0f;
  }
  state.maximum = limits::NO_MAXIMUM;
  state.sum = 0.0f;

  if (span.first < span.end) {
    const int last_page = (span.start + span.end - 1) / BLOCK;
    int page = (span.start + span.first) / BLOCK;
    int token = (span.start + span.first) % BLOCK;  // in its page
    // Lane 0 asks for page ids two pages before they are needed.
    int id = lane == 0 ? table[page] : 0;
    int next_id = lane == 0 && page < last_page ? table[page + 1] : 0;
    for (; page <= last_page; ++page, token = 0) {
      const ulong block = uint(simd_shuffle(id, ushort(0)));
      id = next_id;
      next_id = lane == 0 && page + 2 <= last_page ? table[page + 2] : 0;
      const int end = min(BLOCK, span.start + span.end - page * BLOCK);
      const ulong in_pool = block * (BLOCK * stride) + kv_head * D + first_element;
      const device P* keys = key_pool + in_pool;
      const device P* values = value_pool + in_pool;
      for (; token + 4 <= end; token += 4) {
        attend_tokens<P, R, 4>(keys + ulong(token) * stride, values + ulong(token) * stride, stride,
                               params.softcap_log2, state);
      }
      for (; token < end; ++token) {
        attend_tokens<P, R, 1>(keys + ulong(token) * stride, values + ulong(token) * stride, stride,
                               params.softcap_log2, state);
      }
    }
  }

  const ulong partial = partial_index(group.z, head, partition, params);
  const float norm = inverse(state.sum);
  if (active) {
#pragma unroll
    for (int e = 0; e < R::ELEMENTS; ++e) {
      partial_out[partial * D + first_element + e] = state.output[e] * norm;
    }
  }
  if (lane == 0) partial_stats[partial] = float2(state.maximum, state.sum);
}
