// Attention over a latent cache, absorbed form: what mla_decode and mla_prefill share.
//
// Multi-head latent attention (DeepSeek-V2, arXiv:2405.04434, section 2.1) caches one latent vector
// and one rotary key a token for all heads. With the up-projections absorbed into the queries and
// the output, head h scores a token with q_latent[h] . latent + q_rope[h] . rope, and its output is
// the weighted sum of the latents: attention of many query heads over one KV head whose values are
// the first part of its keys.
//
// A threadgroup takes ROW_TILES tiles of 8 rows, a row being one head of one query token, and
// shares every latent that it reads among them. Each of its simdgroups owns a slice of the latent
// and of the rotary columns, which it alone reads, straight from device memory into registers, once
// for scores and output alike: 8 tokens by 8 columns are the left operand of scores =
// latents x queries^T and, as they lie, the right operand of output = weights x latents. Only the
// scores cross simdgroups:
//
//   1. each simdgroup multiplies its slice: partial scores, to threadgroup memory
//   2. each thread adds the MLA_SIMDGROUPS partial scores of one (row, token), and the lanes of a
//      row take the online softmax: weights to threadgroup memory
//   3. each simdgroup adds weights x its slice to the output columns that it owns
//
// Registers a lane at 512 + 64 columns and 16 bits, with ROW_TILES 2 and 4: output 32 and 64,
// queries 18 and 36, latents 18 and 9; a lane of an Apple GPU can name 128. Twice the rows would
// not fit, half of them would read each latent twice as often: 16 rows do 30 operations a byte.
// Float rows with 4 tiles need 154 and spill.
#pragma once

#include <metal_simdgroup>
#include <metal_simdgroup_matrix>
#include <metal_stdlib>

#include "features.h"
#include "fragment.h"
#include "params.h"
#include "softmax.h"
#include "tile.h"
#include "words.h"

namespace pamx {

using namespace metal;

// How latent columns are dealt out: in chunks of WIDTH, of which simdgroup s takes chunks s, s + 8
// and so on. The contraction and the output may take the columns in any order as long as both
// operands agree, so a lane takes WIDTH / 4 neighbours (16 bytes if it can), and fragment f of a
// chunk is made of every lane's elements 2 * f and 2 * f + 1.
template <int COLUMNS, int WIDEST>
struct Slice {
  static constexpr constant int EACH = limits::MLA_SIMDGROUPS;
  static constexpr constant int WIDTH = WIDEST >= 32 && COLUMNS % (32 * EACH) == 0   ? 32
                                        : WIDEST >= 16 && COLUMNS % (16 * EACH) == 0 ? 16
                                                                                     : 8;
  static constexpr constant int CHUNKS = COLUMNS / WIDTH;
  static constexpr constant int OWN = (CHUNKS + EACH - 1) / EACH;  // of a simdgroup, at most
  static constexpr constant int FRAGMENTS = WIDTH / 8;             // of a chunk
  static constexpr constant int RUN = WIDTH / 4;                   // neighbours of a lane

  // The column that matrix column `x` of fragment f of a chunk stands for.
  static int column(int chunk, int f, int x) { return chunk * WIDTH + x / 2 * RUN + 2 * f + x % 2; }
};

// ROW_TILES = HEAD_TILES * query tokens: row tile r is heads 8 * (r % HEAD_TILES) onwards of query
// token r / HEAD_TILES.
template <int ROW_TILES>
struct MlaTile {
  static constexpr constant int ROWS = 8 * ROW_TILES;
  static constexpr constant int TOKENS = 32 / ROW_TILES;  // rows * tokens = threads
  static constexpr constant int STRIDE = TOKENS + 4;      // keeps the writers' banks apart
  static constexpr constant int PARTIAL = limits::MLA_SIMDGROUPS * ROWS * STRIDE;
  static constexpr constant int WEIGHTS = ROWS * STRIDE;
};

// A slice of 8 tokens of a pool, as pairs of elements; 0 for tokens that no row sees, which may lie
// in a freed page or hold NaN.
template <typename P, typename S, int COLUMNS>
inline void load_slice(thread vec<P, 2>* pairs, const device P* pool, ulong slot, bool seen,
                       ushort simdgroup, ushort lane) {
  constexpr int WORDS = S::RUN * int(sizeof(P)) / 4;
#pragma unroll
  for (int own = 0; own < S::OWN; ++own) {
    const int chunk = own * S::EACH + simdgroup;
    uint words[WORDS];
#pragma unroll
    for (int i = 0; i < WORDS; ++i) words[i] = 0;
    if (seen && chunk < S::CHUNKS) {
      load_words<WORDS>(pool + slot * COLUMNS + S::column(chunk, 0, fragment_column(lane)), words);
    }
#pragma unroll
    for (int f = 0; f < S::FRAGMENTS; ++f) pairs[own * S::FRAGMENTS + f] = pair_of<P>(words, f);
  }
}

// The same slice of the queries of 8 heads, as right operands; 0 for heads past `heads`.
template <typename T, typename S>
inline void load_queries(thread Fragment<T>* fragments, const device T* from, ulong head_stride,
                         int heads, ushort simdgroup, ushort lane) {
#pragma unroll
  for (int own = 0; own < S::OWN; ++own) {
    const int chunk = own * S::EACH + simdgroup;
#pragma unroll
    for (int f = 0; f < S::FRAGMENTS; ++f) {
      const int column = S::column(chunk, f, fragment_row(lane));
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        const int head = fragment_column(lane) + e;
        fragments[own * S::FRAGMENTS + f].thread_elements()[e] =
            head < heads && chunk < S::CHUNKS ? from[head * head_stride + column] : T(0);
      }
    }
  }
}

template <int LATENT>
using LatentSlice = Slice<LATENT, 32>;

// The rotary columns are few: by eights, so that every simdgroup gets its share.
template <int ROPE>
using RopeSlice = Slice<ROPE, 8>;

// Fragments of output of a simdgroup, each row tile.
template <int LATENT>
constexpr int mla_output() {
  return LatentSlice<LATENT>::OWN * LatentSlice<LATENT>::FRAGMENTS;
}

// On return `output` holds this simdgroup's columns, relative to their row's maximum and not
// normalised, and after a barrier parts[row] the row's maximum and sum.
template <typename T, typename P, int LATENT, int ROPE, int HEAD_TILES, int ROW_TILES>
inline void mla_attend(const device T* queries, const device P* latents, const device P* ropes,
                       const device int* table, WorkRow row, Tile tile, int begin, int end,
                       uint first_head, constant AttentionParams& params,
                       threadgroup float* partial, threadgroup float* weights,
                       threadgroup float2* parts,
                       thread Fragment<float> (&output)[ROW_TILES * mla_output<LATENT>()],
                       ushort simdgroup, ushort lane) {
  typedef LatentSlice<LATENT> Latent;
  typedef RopeSlice<ROPE> Rope;
  typedef MlaTile<ROW_TILES> Shape;
  constexpr int OUTPUT = mla_output<LATENT>();
  constexpr int OWN = OUTPUT + Rope::OWN;  // fragments of a token tile
  constexpr int TOKEN_TILES = Shape::TOKENS / 8;
  const ushort fragment_token = fragment_row(lane);
  const ushort column = fragment_column(lane);

  Fragment<T> query[ROW_TILES * OWN];
#pragma unroll
  for (int r = 0; r < ROW_TILES; ++r) {
    const int token = r / HEAD_TILES;
    const int head = first_head + r % HEAD_TILES * 8;
    const int heads = token < tile.tokens ? int(params.heads) - head : 0;
    const device T* from = queries + ulong(row.first_token + token) * params.query_token_stride +
                           ulong(head) * params.query_head_stride;
    load_queries<T, Latent>(query + r * OWN, from, params.query_head_stride, heads, simdgroup,
                            lane);
    load_queries<T, Rope>(query + r * OWN + OUTPUT, from + LATENT, params.query_head_stride, heads,
                          simdgroup, lane);
  }
#pragma unroll
  for (int i = 0; i < ROW_TILES * OUTPUT; ++i) fill(output[i], 0.0f);

  // The row and the token within a tile whose score this lane adds up.
  const ushort own_row = simdgroup * ROW_TILES + lane / Shape::TOKENS;
  const ushort own_token = lane % Shape::TOKENS;
  const int own_query = own_row / 8 / HEAD_TILES;
  const int own_start = max(tile.start_of(own_query), begin);
  const int own_end = min(tile.end_of(own_query), end);
  float maximum = limits::NO_MAXIMUM;
  float sum = 0.0f;  // over this lane's tokens

  const int first_seen = max(tile.start_of(0), begin);
  const int end_seen = min(tile.end_of(tile.last()), end);
  for (int start = first_seen / Shape::TOKENS * Shape::TOKENS; start < end_seen;
       start += Shape::TOKENS) {
    vec<P, 2> latent[TOKEN_TILES * OWN];
#pragma unroll
    for (int t = 0; t < TOKEN_TILES; ++t) {
      const int position = start + 8 * t + fragment_token;
      const bool seen = position >= first_seen && position < end_seen;
      ulong slot = 0;
      if (seen) {
        slot = ulong(uint(table[uint(position) / tokens_a_block])) * tokens_a_block +
               uint(position) % tokens_a_block;
      }
      load_slice<P, Latent, LATENT>(latent + t * OWN, latents, slot, seen, simdgroup, lane);
      load_slice<P, Rope, ROPE>(latent + t * OWN + OUTPUT, ropes, slot, seen, simdgroup, lane);
    }
#pragma unroll
    for (int r = 0; r < ROW_TILES; ++r) {
#pragma unroll
      for (int t = 0; t < TOKEN_TILES; ++t) {
        Fragment<float> score;  // [token][head]
        fill(score, 0.0f);
#pragma unroll
        for (int i = 0; i < OWN; ++i) {
          Fragment<T> key;
          set(key, latent[t * OWN + i]);
          simdgroup_multiply_accumulate(score, key, query[r * OWN + i], score);
        }
        threadgroup float* to = partial +
                                (simdgroup * Shape::ROWS + r * 8 + column) * Shape::STRIDE + t * 8 +
                                fragment_token;
        to[0] = score.thread_elements()[0];
        to[Shape::STRIDE] = score.thread_elements()[1];
      }
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);

    float score = 0.0f;
#pragma unroll
    for (int i = 0; i < int(limits::MLA_SIMDGROUPS); ++i) {
      score += partial[(i * Shape::ROWS + own_row) * Shape::STRIDE + own_token];
    }
    score *= params.scale_log2;
    if (has_softcap) score = capped(score, params.softcap_log2);
    const int position = start + own_token;
    if (position < own_start || position >= own_end) score = limits::MASKED;
    float top = max(maximum, score);
#pragma unroll
    for (ushort step = 1; step < Shape::TOKENS; step *= 2) {
      top = max(top, simd_shuffle_xor(top, step));
    }
    const float keep = rescale(maximum, top);
    const float weight = exp2(score - top);
    maximum = top;
    sum = sum * keep + weight;
    weights[own_row * Shape::STRIDE + own_token] = weight;
    if (own_token == 0) parts[own_row].y = keep;
    threadgroup_barrier(mem_flags::mem_threadgroup);

#pragma unroll
    for (int r = 0; r < ROW_TILES; ++r) {
      const float kept = parts[r * 8 + fragment_token].y;
      Fragment<float> weight_tile[TOKEN_TILES];  // [head][token]
#pragma unroll
      for (int t = 0; t < TOKEN_TILES; ++t) {
        set(weight_tile[t],
            *(const threadgroup float2*)(weights + (r * 8 + fragment_token) * Shape::STRIDE +
                                         t * 8 + column));
      }
#pragma unroll
      for (int i = 0; i < OUTPUT; ++i) {
        scale(output[r * OUTPUT + i], kept);
#pragma unroll
        for (int t = 0; t < TOKEN_TILES; ++t) {
          Fragment<P> value;
          set(value, latent[t * OWN + i]);
          simdgroup_multiply_accumulate(output[r * OUTPUT + i], weight_tile[t], value,
                                        output[r * OUTPUT + i]);
        }
      }
    }
  }

#pragma unroll
  for (ushort step = 1; step < Shape::TOKENS; step *= 2) sum += simd_shuffle_xor(sum, step);
  threadgroup_barrier(mem_flags::mem_threadgroup);  // every simdgroup has read `kept`
  if (own_token == 0) parts[own_row] = float2(maximum, sum);
  threadgroup_barrier(mem_flags::mem_threadgroup);
}

// This simdgroup's columns of a head, multiplied by `factor`.
template <typename D, int LATENT>
inline void mla_store(device D* to, const thread Fragment<float>* output, float factor,
                      ushort simdgroup, ushort lane) {
  typedef LatentSlice<LATENT> Latent;
#pragma unroll
  for (int own = 0; own < Latent::OWN; ++own) {
    const int chunk = own * Latent::EACH + simdgroup;
    if (chunk >= Latent::CHUNKS) continue;
#pragma unroll
    for (int f = 0; f < Latent::FRAGMENTS; ++f) {
      const thread Fragment<float>& of = output[own * Latent::FRAGMENTS + f];
      *(device vec<D, 2>*)(to + Latent::column(chunk, f, fragment_column(lane))) =
          vec<D, 2>(D(of.thread_elements()[0] * factor), D(of.thread_elements()[1] * factor));
    }
  }
}

// Normalised, with the sink, into the rows that exist.
template <typename T, int LATENT, int HEAD_TILES, int ROW_TILES>
inline void mla_store_rows(device T* out, const device float* sinks, WorkRow row, uint first_head,
                           constant AttentionParams& params, const threadgroup float2* parts,
                           const thread Fragment<float>* output, ushort simdgroup, ushort lane) {
#pragma unroll
  for (int r = 0; r < ROW_TILES; ++r) {
    const uint token = r / HEAD_TILES;
    const uint head = first_head + r % HEAD_TILES * 8 + fragment_row(lane);
    if (token >= row.tokens || head >= params.heads) continue;
    const float2 own = parts[r * 8 + fragment_row(lane)];
    float2 part = own;
    if (has_sinks) part = with_sink(part, sinks[head]);
    mla_store<T, LATENT>(out + (ulong(row.first_token + token) * params.heads + head) * LATENT,
                         output + r * mla_output<LATENT>(),
                         rescale(own.x, part.x) * inverse(part.y), simdgroup, lane);
  }
}

}  // namespace pamx
