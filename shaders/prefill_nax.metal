// Prefill over pages with the tensor units of M5 GPUs.
//
// FlashAttention-2 (Dao, arXiv:2307.08691) as in prefill_tiled, in products of 16x16 by 16x32 that
// mpp::tensor_ops::matmul2d leaves to the tensor units. Metal 4 only: for older compilers this file
// is empty.
//
//   grid         (heads, 1, work rows)
//   threadgroup  (32 * PREFILL_NAX_TOKENS / 16): a simdgroup holds 16 query tokens
//   buffers      params.h: AttentionBuffer; kPartialOut and kPartialStats are not read
//
// Operands lie in registers, read by each lane from where the page is: there is no threadgroup
// memory and no barrier, and each simdgroup walks through the tokens that its own queries see. The
// simdgroups of a threadgroup read the same tiles at about the same time, from the cache.
//
// Registers: the output takes D / 2 a lane (64 at head size 128, 128 at 256), the scores 16. The
// queries are read again for every tile, since D / 4 more would leave no room.
//
// For M5 and later, from macOS 26.2, whose matmul2d first took operands from registers. Which
// element lies in which lane is not documented, and earlier GPUs differ. Of a 16x16 operand, lane l
// holds row fragment_row(l) in elements 0 to 3 and 8 rows below it in elements 4 to 7, at columns
// 2 * fragment_column(l) to + 3; a 16x32 or 32x16 operand is two of them. MLX's tensor-unit kernels
// (mlx/backend/metal/kernels/steel/attn/nax.h) rely on this too.
#include "features.h"
#include "fragment.h"
#include "params.h"
#include "softmax.h"
#include "tile.h"
#include "words.h"

#if __METAL_VERSION__ >= 400

#include <MetalPerformancePrimitives/MetalPerformancePrimitives.h>

using namespace metal;
using namespace pamx;

// c += a x b: 16x16 times 16x32, or times the transpose of 32x16.
template <bool TRANSPOSED, bool RELAXED, typename A, typename B>
inline void multiply(thread float* c, const thread A* a, const thread B* b) {
  constexpr auto shape = mpp::tensor_ops::matmul2d_descriptor(
      16, 32, 16, false, TRANSPOSED, RELAXED,
      mpp::tensor_ops::matmul2d_descriptor::mode::multiply_accumulate);
  mpp::tensor_ops::matmul2d<shape, execution_simdgroup> product;
  auto left = product.template get_left_input_cooperative_tensor<A, B, float>();
  auto right = product.template get_right_input_cooperative_tensor<A, B, float>();
  auto sums = product.template get_destination_cooperative_tensor<
      remove_addrspace_t<decltype(left)>, remove_addrspace_t<decltype(right)>, float>();
#pragma unroll
  for (short i = 0; i < 8; ++i) left[i] = a[i];
#pragma unroll
  for (short i = 0; i < 16; ++i) {
    right[i] = b[i];
    sums[i] = c[i];
  }
  product.run(left, right, sums);
#pragma unroll
  for (short i = 0; i < 16; ++i) c[i] = sums[i];
}

// Four neighbours of a row of a pool; 0 if `seen` is not.
template <typename P>
inline void load_four(thread P* to, const device P* from, bool seen) {
  constexpr int WORDS = int(sizeof(P));
  uint words[WORDS];
#pragma unroll
  for (int i = 0; i < WORDS; ++i) words[i] = 0;
  if (seen) load_words<WORDS>(from, words);
  const vec<P, 2> low = pair_of<P>(words, 0), high = pair_of<P>(words, 1);
  to[0] = low.x;
  to[1] = low.y;
  to[2] = high.x;
  to[3] = high.y;
}

template <typename T, typename P, int D>
[[kernel, max_total_threads_per_threadgroup(2 * limits::PREFILL_NAX_TOKENS)]]
void prefill_nax(const device T* queries [[buffer(kQueries)]],
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
  constexpr int TILE = 32;               // context tokens: the width of one product
  constexpr int OUTPUT = (D + 31) / 32;  // products that the output is wide
  // Weights may be rounded to 16 bits where the output will be.
  constexpr bool RELAXED = sizeof(T) == 2;

  const WorkRow row = work_rows[group.z];
  const Tile tile = tile_of(row, context_lens, query_starts, params);
  const uint head = group.x;
  const uint kv_head = head / (params.heads / params.kv_heads);
  const device int* table = block_tables + ulong(row.sequence) * params.max_blocks;
  const int first_token = simdgroup * 16;
  const int last_token = min(first_token + 15, tile.last());
  if (first_token > last_token) return;  // the whole simdgroup
  // What any token of the simdgroup sees, and what all of them see.
  const int any_start = tile.start_of(first_token);
  const int any_end = tile.end_of(last_token);
  const int all_start = tile.start_of(last_token);
  const int all_end = tile.end_of(first_token);

  const ushort own_row = fragment_row(lane);
  const ushort column = 2 * fragment_column(lane);
  bool has_token[2];
  const device T* from[2];
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const int token = first_token + own_row + 8 * i;
    has_token[i] = token < tile.tokens;
    from[i] = queries +
              ulong(row.first_token + (has_token[i] ? token : 0)) * params.query_token_stride +
              head * params.query_head_stride + column;
  }
  float output[OUTPUT * 16];
#pragma unroll
  for (int i = 0; i < OUTPUT * 16; ++i) output[i] = 0.0f;
  float maximum[2] = {limits::NO_MAXIMUM, limits::NO_MAXIMUM};
  float sum[2] = {0.0f, 0.0f};  // over this lane's columns

  for (int start = any_start / TILE * TILE; start < any_end; start += TILE) {
    // This lane's rows of the tile's keys and values, 8 tokens apart: each run of 8 lies in one
    // block.
    bool seen[TILE / 8];
    ulong at[TILE / 8];
#pragma unroll
    for (int i = 0; i < TILE / 8; ++i) {
      const int position = start + 8 * i + own_row;
      // A token that no query sees may lie in a freed page or hold NaN, whose product with a weight
      // of 0 is NaN: it becomes 0.
      seen[i] = position >= any_start && position < any_end;
      ulong slot = 0;
      if (seen[i]) {
        slot = ulong(uint(table[uint(position) / tokens_a_block])) * tokens_a_block +
               uint(position) % tokens_a_block;
      }
      at[i] = (slot * params.kv_heads + kv_head) * D + column;
    }

    float score[16];
#pragma unroll
    for (int i = 0; i < 16; ++i) score[i] = 0.0f;
#pragma unroll(4)
    for (int d = 0; d < D; d += 16) {
      T query[8];
      P key[16];
#pragma unroll
      for (int i = 0; i < 8; ++i) query[i] = has_token[i / 4] ? from[i / 4][d + i % 4] : T(0);
#pragma unroll
      for (int i = 0; i < 4; ++i) load_four(key + 4 * i, key_pool + at[i] + d, seen[i]);
      multiply<true, RELAXED>(score, query, key);
    }

    const bool whole = start >= all_start && start + TILE <= all_end;
    float top[2] = {maximum[0], maximum[1]};
#pragma unroll
    for (int i = 0; i < 16; ++i) {
      const int r = i / 4 % 2;
      float logit = score[i] * params.scale_log2;
      if (has_softcap) logit = capped(logit, params.softcap_log2);
      if (!whole) {
        const int token = first_token + own_row + 8 * r;
        const int position = start + i / 8 * 16 + column + i % 4;
        if (position < tile.start_of(token) || position >= tile.end_of(token)) {
          logit = limits::MASKED;
        }
      }
      score[i] = logit;
      top[r] = max(top[r], logit);
    }
    float keep[2];
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      top[r] = row_max(top[r]);
      keep[r] = rescale(maximum[r], top[r]);
      maximum[r] = top[r];
      sum[r] *= keep[r];
    }
#pragma unroll
    for (int i = 0; i < 16; ++i) {
      const int r = i / 4 % 2;
      score[i] = exp2(score[i] - top[r]);
      sum[r] += score[i];
    }
#pragma unroll
    for (int i = 0; i < OUTPUT * 16; ++i) output[i] *= keep[i / 4 % 2];
#pragma unroll
    for (int c = 0; c < OUTPUT; ++c) {
#pragma unroll
      for (int t = 0; t < 2; ++t) {  // 16 tokens each
        P value[16];
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const int d = 32 * c + i / 2 * 16;  // a head size of 80 ends halfway through a product
          load_four(value + 4 * i, value_pool + at[2 * t + i % 2] + d,
                    seen[2 * t + i % 2] && d < D);
        }
        multiply<false, RELAXED>(output + 16 * c, score + 8 * t, value);
      }
    }
  }

#pragma unroll
  for (int r = 0; r < 2; ++r) {
    float2 part = float2(maximum[r], row_sum(sum[r]));
    float factor = 1.0f;
    if (has_sinks) {
      part = with_sink(part, sinks[head]);
      factor = rescale(maximum[r], part.x);
    }
    factor *= inverse(part.y);
    if (!has_token[r]) continue;
    const ulong token = row.first_token + first_token + own_row + 8 * r;
    device T* to = out + (token * params.heads + head) * D + column;
#pragma unroll
    for (int i = 0; i < OUTPUT * 2; ++i) {
      if (16 * i >= D) continue;
      const thread float* four = output + 8 * i + 4 * r;
      typedef vec<T, 4> T4;
      *(device T4*)(to + 16 * i) = T4(float4(four[0], four[1], four[2], four[3]) * factor);
    }
  }
}

#endif  // __METAL_VERSION__ >= 400
