// The pieces of gqa_decode's matrix form, each of them one simdgroup's work on one step of tokens.
//
// The group's query heads are the columns, or the rows, of 8x8 products: scores = keys x queries^T,
// 8 tokens by up to 8 heads, and outputs = weights^T x values. L is a MatrixLayout throughout.
#pragma once

#include <metal_simdgroup>
#include <metal_simdgroup_matrix>
#include <metal_stdlib>

#include "fragment.h"
#include "gqa_group.h"
#include "gqa_row.h"
#include "pool_words.h"
#include "softmax.h"

namespace pamx {

using namespace metal;

// How a simdgroup spreads over STEP tokens that it takes at once. P: type of rows and pools, D:
// head size, G: query heads of the KV head, BLOCK: tokens a page.
//
// A lane takes one token of every eight, and of its keys and values RUN neighbours (16 bytes if it
// can) of each chunk of WIDTH columns. The sums over columns, and the output's columns, may come in
// any order as long as both operands agree: fragment f of a chunk is made of every lane's elements
// 2 * f and 2 * f + 1, and a word that was loaded is what the lane holds of it.
template <typename P, int D, int G, int BLOCK, int STEP>
struct MatrixLayout {
  static constexpr constant int DIM = D;
  static constexpr constant int GROUP = G;
  static constexpr constant int PAGE_TOKENS = BLOCK;
  static constexpr constant int TOKENS = STEP;
  static constexpr constant int TILES = STEP / 8;
  static constexpr constant int PAGES = STEP > BLOCK ? STEP / BLOCK : 1;  // of a step
  static constexpr constant int STEPS = 32 / PAGES;  // whose page ids a simdgroup holds

  static constexpr constant int WIDTH = D % 32 == 0 ? 32 : 16;
  static constexpr constant int CHUNKS = D / WIDTH;
  static constexpr constant int RUN = WIDTH / 4;
  static constexpr constant int FRAGMENTS = WIDTH / 8;               // of a chunk; words of a run
  static constexpr constant int WORDS = TILES * CHUNKS * FRAGMENTS;  // of keys, or of values
  static constexpr constant int OUTPUTS = CHUNKS * FRAGMENTS;

  static constexpr constant int HEADS = 8;
  static constexpr constant int WEIGHTS = STEP + 4;  // floats of a head: keeps writers' banks apart

  static_assert(sizeof(P) == 2, "a word is two elements");
  static_assert(D % 16 == 0 && G >= 1 && G <= HEADS, "no layout for this head size or group");
  static_assert(STEP % BLOCK == 0 || BLOCK % STEP == 0, "a step is whole pages, or a part of one");
};

// The column that matrix column `x` of fragment f of a chunk stands for.
template <typename L>
inline int matrix_column(int chunk, int f, int x) {
  return chunk * L::WIDTH + x / 2 * L::RUN + 2 * f + x % 2;
}

// The group's queries as right operands, by the whole threadgroup: word f of chunk c and lane l at
// staged[(c * 32 + l) * FRAGMENTS + f]. Heads that are not there are zero.
template <typename P, typename L>
inline void stage_fragments(const device P* queries, constant AttentionParams& params,
                            uint thread_id, uint threads, threadgroup uint* staged) {
  for (uint i = thread_id; i < uint(L::OUTPUTS * 32); i += threads) {
    const int f = i % L::FRAGMENTS, chunk = i / (L::FRAGMENTS * 32);
    const ushort lane = i / L::FRAGMENTS % 32;
    const device P* from = queries + matrix_column<L>(chunk, f, fragment_row(lane));
    const int head = fragment_column(lane);
    vec<P, 2> two = vec<P, 2>(P(0.0f));
    if (head < L::GROUP) two.x = from[head * params.query_head_stride];
    if (head + 1 < L::GROUP) two.y = from[(head + 1) * params.query_head_stride];
    staged[i] = as_type<uint>(two);
  }
}

// Chunk c of a step's keys, or values. `pool`: from the first column that this lane takes, of the
// token that it takes of a page's first eight.
template <typename P, typename L>
inline void load_chunk(const device P* pool, thread const ulong* pages, uint stride, int c,
                       thread uint* words) {
#pragma unroll
  for (int t = 0; t < L::TILES; ++t) {
    const device P* from = pool + pages[L::PAGES == 1 ? 0 : t * 8 / L::PAGE_TOKENS] +
                           ulong(stride) * (L::PAGES == 1 ? t * 8 : t * 8 % L::PAGE_TOKENS);
    Words<L::FRAGMENTS>::load(from + c * L::WIDTH, words + (t * L::CHUNKS + c) * L::FRAGMENTS);
  }
}

// scores[t]: tokens by heads. Keys make room for values, chunk by chunk.
template <typename P, typename L>
inline void score_tiles(thread uint* words, const threadgroup uint* queries, const device P* values,
                        thread const ulong* pages, uint stride, ushort lane,
                        thread Fragment<float>* scores) {
  typedef vec<uint, L::FRAGMENTS> Run;
#pragma unroll
  for (int t = 0; t < L::TILES; ++t) fill(scores[t], 0.0f);
#pragma unroll
  for (int c = 0; c < L::CHUNKS; ++c) {
    const Run run = ((const threadgroup Run*)queries)[c * 32 + lane];
#pragma unroll
    for (int f = 0; f < L::FRAGMENTS; ++f) {
      Fragment<P> query;
      set(query, as_type<vec<P, 2>>(run[f]));
#pragma unroll
      for (int t = 0; t < L::TILES; ++t) {
        Fragment<P> key;
        set(key, as_type<vec<P, 2>>(words[(t * L::CHUNKS + c) * L::FRAGMENTS + f]));
        simdgroup_multiply_accumulate(scores[t], key, query, scores[t]);
      }
    }
    load_chunk<P, L>(values, pages, stride, c, words);
  }
}

// Scale, soft-cap and mask. `first_token`: of the step.
template <typename L>
inline void finish_tiles(thread Fragment<float>* scores, Span span, int first_token, ushort lane,
                         constant AttentionParams& params) {
  const bool edge = first_token < span.first || first_token + L::TOKENS > span.end;
#pragma unroll
  for (int t = 0; t < L::TILES; ++t) {
    const int token = first_token + t * 8 + int(fragment_row(lane));
    const bool unseen = edge && (token < span.first || token >= span.end);
#pragma unroll
    for (int e = 0; e < 2; ++e) {
      float score = scores[t].thread_elements()[e] * params.scale_log2;
      if (has_softcap) score = capped(score, params.softcap_log2);
      scores[t].thread_elements()[e] = unseen ? limits::MASKED : score;
    }
  }
}

// Raises the maxima of this lane's two heads where a score asks for it (MAXIMUM_SLACK), and brings
// sums and outputs in line.
template <typename L>
inline void raise_tile_maxima(thread const Fragment<float>* scores, thread float* maxima,
                              thread float* sums, ushort lane, thread Fragment<float>* outputs) {
  float tops[2];
#pragma unroll
  for (int e = 0; e < 2; ++e) {
    tops[e] = maxima[e];
#pragma unroll
    for (int t = 0; t < L::TILES; ++t) tops[e] = max(tops[e], scores[t].thread_elements()[e]);
  }
  const bool higher = tops[0] > maxima[0] + MAXIMUM_SLACK || tops[1] > maxima[1] + MAXIMUM_SLACK;
  if (!simd_any(higher)) return;
  float factors[2];
#pragma unroll
  for (int e = 0; e < 2; ++e) {
    const float top = column_max(tops[e]);
    factors[e] = rescale(maxima[e], top);
    sums[e] *= factors[e];
    maxima[e] = top;
  }
  // A row of the outputs is a head, which was a column of the scores.
  const ushort head = fragment_row(lane), owner = fragment_lane(0, head);
  const float even = simd_shuffle(factors[0], owner), odd = simd_shuffle(factors[1], owner);
#pragma unroll
  for (int i = 0; i < L::OUTPUTS; ++i) scale(outputs[i], head % 2 == 0 ? even : odd);
}

// `weights`: [HEADS, WEIGHTS], of the turn; they turn from columns to rows on the way.
template <typename L>
inline void weigh_tiles(thread const Fragment<float>* scores, thread const float* maxima,
                        ushort lane, thread float* sums, threadgroup float* weights) {
#pragma unroll
  for (int t = 0; t < L::TILES; ++t) {
#pragma unroll
    for (int e = 0; e < 2; ++e) {
      const float weight = exp2(scores[t].thread_elements()[e] - maxima[e]);
      sums[e] += weight;
      weights[(fragment_column(lane) + e) * L::WEIGHTS + t * 8 + fragment_row(lane)] = weight;
    }
  }
}

// Values of tokens that the query does not see may be NaN, which no weight makes harmless.
template <typename L>
inline void clear_unseen_tiles(Span span, int first_token, ushort lane, thread uint* words) {
  constexpr int WORDS = L::CHUNKS * L::FRAGMENTS;
#pragma unroll
  for (int t = 0; t < L::TILES; ++t) {
    const int token = first_token + t * 8 + int(fragment_row(lane));
    const bool seen = token >= span.first && token < span.end;
#pragma unroll
    for (int i = 0; i < WORDS; ++i) words[t * WORDS + i] = seen ? words[t * WORDS + i] : 0u;
  }
}

// outputs[c * FRAGMENTS + f]: heads by columns. Values make room for the next step's keys.
template <typename P, typename L>
inline void accumulate_tiles(thread uint* words, const threadgroup float* weights,
                             const device P* keys, thread const ulong* pages, uint stride,
                             ushort lane, thread Fragment<float>* outputs) {
  Fragment<float> weight[L::TILES];
#pragma unroll
  for (int t = 0; t < L::TILES; ++t) {
    set(weight[t], *(const threadgroup float2*)(weights + fragment_row(lane) * L::WEIGHTS + t * 8 +
                                                fragment_column(lane)));
  }
#pragma unroll
  for (int c = 0; c < L::CHUNKS; ++c) {
#pragma unroll
    for (int f = 0; f < L::FRAGMENTS; ++f) {
#pragma unroll
      for (int t = 0; t < L::TILES; ++t) {
        const int i = c * L::FRAGMENTS + f;
        Fragment<P> value;
        set(value, as_type<vec<P, 2>>(words[t * L::OUTPUTS + i]));
        simdgroup_multiply_accumulate(outputs[i], weight[t], value, outputs[i]);
      }
    }
    load_chunk<P, L>(keys, pages, stride, c, words);
  }
}

// This lane's columns of its head to a row of D floats.
template <typename L>
inline void store_tiles(thread const Fragment<float>* outputs, ushort lane,
                        threadgroup float* row) {
#pragma unroll
  for (int c = 0; c < L::CHUNKS; ++c) {
#pragma unroll
    for (int f = 0; f < L::FRAGMENTS; ++f) {
      const thread Fragment<float>& of = outputs[c * L::FRAGMENTS + f];
      *(threadgroup float2*)(row + matrix_column<L>(c, f, fragment_column(lane))) =
          float2(of.thread_elements()[0], of.thread_elements()[1]);
    }
  }
}

}  // namespace pamx
