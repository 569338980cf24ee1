// The pieces of gqa_decode's per-head form: one simdgroup holds one query head, and each lane a few
// neighbouring elements of it, of every key and of every value.
#pragma once

#include <metal_simdgroup>
#include <metal_stdlib>

#include "gqa_row.h"
#include "pool_words.h"
#include "softmax.h"

namespace pamx {

using namespace metal;

// A row of D elements over a simdgroup. A lane takes a power of two of them, so that it needs one
// load; where that leaves lanes over (head sizes 80, 96 and 192), those repeat the last lane's
// loads and their queries are zero.
template <typename P, int D>
struct HeadRow {
  static constexpr constant int ELEMENTS = D > 128 ? 8 : D > 64 ? 4 : 2;
  static constexpr constant int LANES = D / ELEMENTS;
  static constexpr constant int WORDS = ELEMENTS * int(sizeof(P)) / 4;
  static constexpr constant int LOAD = WORDS < 4 ? WORDS : 4;  // words of one load
  static_assert(LANES * ELEMENTS == D && LANES <= 32, "no layout for this head size");

  static inline void load(const device P* row, thread uint* words) {
#pragma unroll
    for (int w = 0; w < WORDS; w += LOAD) {
      Words<LOAD>::load(row + w * (4 / int(sizeof(P))), words + w);
    }
  }
};

// One head's attention so far. Every lane has the same maximum and sum.
template <typename R>
struct HeadState {
  float query[R::ELEMENTS];
  float output[R::ELEMENTS];
  float maximum;
  float sum;
};

// COUNT tokens that lie one after another in a page; keys and values at this lane's elements. All
// loads are issued before the first is used.
template <typename P, typename R, int COUNT>
inline void attend_tokens(const device P* keys, const device P* values, uint stride,
                          float softcap_log2, thread HeadState<R>& state) {
  uint key_words[COUNT * R::WORDS], value_words[COUNT * R::WORDS];
#pragma unroll
  for (int t = 0; t < COUNT; ++t) R::load(keys + ulong(t) * stride, key_words + t * R::WORDS);
#pragma unroll
  for (int t = 0; t < COUNT; ++t) R::load(values + ulong(t) * stride, value_words + t * R::WORDS);

  float scores[COUNT];
  float top = state.maximum;
#pragma unroll
  for (int t = 0; t < COUNT; ++t) {
    float score = 0.0f;
#pragma unroll
    for (int e = 0; e < R::ELEMENTS; e += 2) {
      const float2 k = Elements<P>::pair(key_words + t * R::WORDS, e / 2);
      score = fma(state.query[e + 1], k.y, fma(state.query[e], k.x, score));
    }
    score = simd_sum(score);
    if (has_softcap) score = capped(score, softcap_log2);
    scores[t] = score;
    top = max(top, score);
  }

  const float factor = rescale(state.maximum, top);
  state.maximum = top;
  state.sum *= factor;
#pragma unroll
  for (int e = 0; e < R::ELEMENTS; ++e) state.output[e] *= factor;
#pragma unroll
  for (int t = 0; t < COUNT; ++t) {
    const float weight = exp2(scores[t] - top);
    state.sum += weight;
#pragma unroll
    for (int e = 0; e < R::ELEMENTS; e += 2) {
      const float2 v = Elements<P>::pair(value_words + t * R::WORDS, e / 2);
      state.output[e] = fma(weight, v.x, state.output[e]);
      state.output[e + 1] = fma(weight, v.y, state.output[e + 1]);
    }
  }
}

}  // namespace pamx
