// The pieces of gqa_decode's group-sharing form, each of them one simdgroup's work on one step of
// tokens: locate, load, score, reduce_scatter, softmax, accumulate; gqa_merge.h has what is behind.
//
// L is a GroupLayout throughout. Arrays in `thread` space are registers: every index is a constant
// once the loops are unrolled.
#pragma once

#include <metal_simdgroup>
#include <metal_stdlib>

#include "gqa_layout.h"
#include "gqa_row.h"
#include "pool_words.h"
#include "softmax.h"

namespace pamx {

using namespace metal;

// A running maximum is raised only when a score exceeds it by more than this (in log2 space), since
// raising it costs shuffles and a multiplication of every output. Until then weights are as large
// as 2^8 and sums as 2^17, which costs float no digit.
constant constexpr float MAXIMUM_SLACK = 8.0f;

// ---- locate -------------------------------------------------------------------------------------

// Where the pages of a step begin, in elements from the start of either pool. A step that takes a
// part of a page begins inside it.
//
// `ids` are the page ids of the simdgroup's next L::STEPS steps, a lane each, read when the first
// of them is located: step `step`, the simdgroup's turn-th. Tokens that the query does not see
// stand for the nearest one that it does see: no other entry of the table is read.
template <typename L, int SIMDGROUPS>
inline void locate(thread int& ids, const device int* table, Span span, int step, int turn,
                   uint stride, ushort lane, thread ulong* pages) {
  if (turn % L::STEPS == 0) {
    const int token = (step + int(lane / L::PAGES) * SIMDGROUPS) * L::TOKENS +
                      int(lane % L::PAGES) * L::PAGE_TOKENS;
    ids = table[uint(span.start + clamp(token, span.first, span.end - 1)) / L::PAGE_TOKENS];
  }
#pragma unroll
  for (int p = 0; p < L::PAGES; ++p) {
    const uint id = uint(simd_shuffle(ids, ushort(turn % L::STEPS * L::PAGES + p)));
    pages[p] = ulong(id) * (L::PAGE_TOKENS * stride);
  }
  if (L::PAGES == 1) pages[0] += uint(step * L::TOKENS) % L::PAGE_TOKENS * stride;
}

// ---- load ---------------------------------------------------------------------------------------

// `keys`: the pool, from this lane's first chunk of the KV head in a page's token
// key_token % PAGE_TOKENS.
template <typename P, typename L>
inline void load_keys(const device P* keys, thread const ulong* pages, uint stride,
                      ushort key_token, thread uint* words) {
#pragma unroll
  for (int u = 0; u < L::KEY_ROUNDS; ++u) {
    const int first = u * L::KEY_TOKENS;
    ulong row = pages[L::PAGES == 1 ? 0 : first / L::PAGE_TOKENS];
#pragma unroll
    for (int p = 1; p < L::KEY_PAGES; ++p) {
      const ulong later = pages[first / L::PAGE_TOKENS + p];  // a copy, not a choice of addresses
      row = key_token / L::PAGE_TOKENS == p ? later : row;
    }
    const device P* from =
        keys + row + ulong(stride) * (L::PAGES == 1 ? first : first % L::PAGE_TOKENS);
#pragma unroll
    for (int c = 0; c < L::KEY_CHUNKS; ++c) {
      Words<L::CHUNK_WORDS>::load(from + c * L::KEY_LANES * L::CHUNK,
                                  words + (u * L::KEY_CHUNKS + c) * L::CHUNK_WORDS);
    }
  }
}

// `values`: the pool, from this lane's first piece of the KV head in a page's token value_token.
template <typename P, typename L>
inline void load_values(const device P* values, thread const ulong* pages, uint stride,
                        thread uint* words) {
#pragma unroll
  for (int v = 0; v < L::VALUE_ROUNDS; ++v) {
    const int first = v * L::VALUE_TOKENS;
    const device P* from = values + pages[L::PAGES == 1 ? 0 : first / L::PAGE_TOKENS] +
                           ulong(stride) * (L::PAGES == 1 ? first : first % L::PAGE_TOKENS);
#pragma unroll
    for (int c = 0; c < L::PIECES; ++c) {
      Words<L::PIECE_WORDS>::load(from + c * L::VALUE_LANES * L::PIECE,
                                  words + (v * L::PIECES + c) * L::PIECE_WORDS);
    }
  }
}

// Values of tokens that the query does not see may be NaN, which no weight makes harmless.
template <typename L>
inline void clear_unseen(Span span, int first_token, ushort value_token, thread uint* words) {
  constexpr int WORDS = L::PIECES * L::PIECE_WORDS;
#pragma unroll
  for (int v = 0; v < L::VALUE_ROUNDS; ++v) {
    const int token = first_token + v * L::VALUE_TOKENS + int(value_token);
    const bool seen = token >= span.first && token < span.end;
#pragma unroll
    for (int i = 0; i < WORDS; ++i) words[v * WORDS + i] = seen ? words[v * WORDS + i] : 0u;
  }
}

// ---- score --------------------------------------------------------------------------------------

// The place, among the float4 of `queries`, of four elements of a head: quad q of this lane's chunk
// c. Neighbouring lanes read neighbouring places, so that no two meet in one bank.
template <typename L>
inline int query_place(int head, int c, int quad, int key_lane) {
  return ((head * L::KEY_CHUNKS + c) * L::QUADS + quad) * L::KEY_LANES + key_lane;
}

// The group's queries, scaled, by the whole threadgroup.
template <typename T, typename L>
inline void stage_queries(const device T* queries, constant AttentionParams& params, uint thread_id,
                          uint threads, threadgroup float4* staged) {
  for (uint i = thread_id; i < uint(L::GROUP * L::DIM / 4); i += threads) {
    const uint key_lane = i % L::KEY_LANES, quad = i / L::KEY_LANES % L::QUADS;
    const uint c = i / (L::KEY_LANES * L::QUADS) % L::KEY_CHUNKS;
    const uint head = i / (L::DIM / 4);
    const device T* from = queries + head * params.query_head_stride +
                           (c * L::KEY_LANES + key_lane) * L::CHUNK + quad * 4;
    staged[i] =
        float4(float(from[0]), float(from[1]), float(from[2]), float(from[3])) * params.scale_log2;
  }
}

// This lane's part of the scores: of head g and round u at scores[g * KEY_ROUNDS + u].
template <typename P, typename L>
inline void score(thread const uint* keys, const threadgroup float4* queries, ushort key_lane,
                  thread float* scores) {
#pragma unroll
  for (int i = L::GROUP * L::KEY_ROUNDS; i < L::SCORES; ++i) scores[i] = 0.0f;  // heads of padding
#pragma unroll
  for (int c = 0; c < L::KEY_CHUNKS; ++c) {
#pragma unroll
    for (int quad = 0; quad < L::QUADS; ++quad) {
      float4 k[L::KEY_ROUNDS];
#pragma unroll
      for (int u = 0; u < L::KEY_ROUNDS; ++u) {
        const int chunk = (u * L::KEY_CHUNKS + c) * L::CHUNK_WORDS;
        const float2 low = Elements<P>::pair(keys + chunk, quad * 2);
        const float2 high = Elements<P>::pair(keys + chunk, quad * 2 + 1);
        k[u] = float4(low.x, low.y, high.x, high.y);
      }
#pragma unroll
      for (int g = 0; g < L::GROUP; ++g) {
        const float4 q = queries[query_place<L>(g, c, quad, key_lane)];
#pragma unroll
        for (int u = 0; u < L::KEY_ROUNDS; ++u) {
          thread float& sum = scores[g * L::KEY_ROUNDS + u];
          sum = c == 0 && quad == 0 ? q.x * k[u].x : fma(q.x, k[u].x, sum);
          sum = fma(q.w, k[u].w, fma(q.z, k[u].z, fma(q.y, k[u].y, sum)));
        }
      }
    }
  }
}

// ---- reduce_scatter -----------------------------------------------------------------------------

// Sums `values` over groups of LANES lanes and leaves each lane its share: lane i of the group has
// the sums [i * N / LANES, (i + 1) * N / LANES) in front. In each round a lane sends its partner
// half of what it still has: N - N / LANES shuffles, where a butterfly for each value takes
// N * log2(LANES).
template <int N, int LANES>
struct ReduceScatter {
  static inline void apply(thread float* values, ushort lane) {
    constexpr int KEPT = N / 2;
    const bool upper = (lane & ushort(LANES / 2)) != 0;
#pragma unroll
    for (int i = 0; i < KEPT; ++i) {
      // Copies: a choice between elements may become one between their addresses, which takes the
      // array out of registers.
      const float low = values[i], high = values[i + KEPT];
      const float received = simd_shuffle_xor(upper ? low : high, ushort(LANES / 2));
      values[i] = (upper ? high : low) + received;
    }
    ReduceScatter<KEPT, LANES / 2>::apply(values, lane);
  }
};

template <int N>
struct ReduceScatter<N, 1> {
  static inline void apply(thread float*, ushort) {}
};

// ---- softmax ------------------------------------------------------------------------------------

// What a lane owns of each step after reduce_scatter: heads [head, head + OWN_HEADS) of rounds
// [round, round + OWN_ROUNDS); of a round, the token key_token.
struct Owned {
  int head;
  int round;
};

template <typename L>
inline Owned owned_by(ushort key_lane) {
  Owned owned;
  owned.head = int(key_lane) * L::OWN / L::KEY_ROUNDS;
  owned.round = int(key_lane) * L::OWN % L::KEY_ROUNDS;
  return owned;
}

// Sum, or maximum, over the lanes that own the same head: SHARERS neighbours of each of the
// KEY_TOKENS groups.
template <typename L>
inline float sum_over_owners(float value) {
#pragma unroll
  for (int x = 1; x < L::SHARERS; x *= 2) value += simd_shuffle_xor(value, ushort(x));
#pragma unroll
  for (int x = L::KEY_LANES; x < 32; x *= 2) value += simd_shuffle_xor(value, ushort(x));
  return value;
}

template <typename L>
inline float maximum_over_owners(float value) {
#pragma unroll
  for (int x = 1; x < L::SHARERS; x *= 2) value = max(value, simd_shuffle_xor(value, ushort(x)));
#pragma unroll
  for (int x = L::KEY_LANES; x < 32; x *= 2) value = max(value, simd_shuffle_xor(value, ushort(x)));
  return value;
}

// Soft-cap and mask. `first_token`: of the step.
template <typename L>
inline void finish_scores(thread float* scores, Owned owned, Span span, int first_token,
                          ushort key_token, float softcap_log2) {
  const bool edge = first_token < span.first || first_token + L::TOKENS > span.end;
#pragma unroll
  for (int i = 0; i < L::OWN; ++i) {
    if (has_softcap) scores[i] = capped(scores[i], softcap_log2);
    if (edge) {
      const int round = owned.round + i % L::OWN_ROUNDS;
      const int token = first_token + round * L::KEY_TOKENS + int(key_token);
      if (token < span.first || token >= span.end) scores[i] = limits::MASKED;
    }
  }
}

// Raises the maxima where a score asks for it, and brings sums and outputs in line.
template <typename L>
inline void raise_maxima(thread const float* scores, thread float* maxima, thread float* sums,
                         thread float* outputs) {
  bool higher = false;
#pragma unroll
  for (int i = 0; i < L::OWN; ++i) {
    higher = higher || scores[i] > maxima[i / L::OWN_ROUNDS] + MAXIMUM_SLACK;
  }
  if (!simd_any(higher)) return;
  float factors[L::OWN_HEADS];
#pragma unroll
  for (int h = 0; h < L::OWN_HEADS; ++h) {
    float top = maxima[h];
#pragma unroll
    for (int u = 0; u < L::OWN_ROUNDS; ++u) top = max(top, scores[h * L::OWN_ROUNDS + u]);
    top = maximum_over_owners<L>(top);
    factors[h] = rescale(maxima[h], top);
    sums[h] *= factors[h];
    maxima[h] = top;
  }
#pragma unroll
  for (int g = 0; g < L::GROUP; ++g) {
    const ushort owner = ushort(g / L::OWN_HEADS * L::SHARERS);
    const float factor = simd_shuffle(factors[g % L::OWN_HEADS], owner);
#pragma unroll
    for (int e = 0; e < L::VALUE_ELEMENTS; ++e) outputs[g * L::VALUE_ELEMENTS + e] *= factor;
  }
}

// One exponential a token and head, in the lane that owns it. `weights`: [TOKENS, HEADS].
template <typename L>
inline void weigh(thread const float* scores, thread const float* maxima, Owned owned,
                  ushort key_token, thread float* sums, threadgroup float* weights) {
#pragma unroll
  for (int i = 0; i < L::OWN; ++i) {
    const int h = i / L::OWN_ROUNDS, round = owned.round + i % L::OWN_ROUNDS;
    const float weight = exp2(scores[i] - maxima[h]);
    sums[h] += weight;
    weights[(round * L::KEY_TOKENS + int(key_token)) * L::HEADS + owned.head + h] = weight;
  }
}

// ---- accumulate ---------------------------------------------------------------------------------

// The weights of one token for all heads, in reads of up to 16 bytes.
template <int HEADS>
inline void read_weights(const threadgroup float* from, thread float* weights) {
  if (HEADS >= 4) {
#pragma unroll
    for (int g = 0; g < HEADS / 4; ++g) {
      const float4 four = ((const threadgroup float4*)from)[g];
      weights[g * 4] = four.x;
      weights[g * 4 + 1] = four.y;
      weights[g * 4 + 2] = four.z;
      weights[g * 4 + 3] = four.w;
    }
  } else {
#pragma unroll
    for (int g = 0; g < HEADS; ++g) weights[g] = from[g];
  }
}

// outputs[g * VALUE_ELEMENTS + c * PIECE + e]: element e of this lane's piece c, head g.
template <typename P, typename L>
inline void accumulate(thread const uint* values, const threadgroup float* weights,
                       ushort value_token, thread float* outputs) {
#pragma unroll
  for (int v = 0; v < L::VALUE_ROUNDS; ++v) {
    float weight[L::HEADS];
    read_weights<L::HEADS>(weights + (v * L::VALUE_TOKENS + int(value_token)) * L::HEADS, weight);
#pragma unroll
    for (int c = 0; c < L::PIECES; ++c) {
#pragma unroll
      for (int e = 0; e < L::PIECE; e += 2) {
        const float2 x = Elements<P>::pair(values + (v * L::PIECES + c) * L::PIECE_WORDS, e / 2);
#pragma unroll
        for (int g = 0; g < L::GROUP; ++g) {
          thread float* output = outputs + g * L::VALUE_ELEMENTS + c * L::PIECE + e;
          output[0] = fma(weight[g], x.x, output[0]);
          output[1] = fma(weight[g], x.y, output[1]);
        }
      }
    }
  }
}

// ---- store --------------------------------------------------------------------------------------

// This lane's pieces of one head to a row of D floats.
template <typename L>
inline void store_outputs(thread const float* outputs, ushort value_lane, threadgroup float* row) {
#pragma unroll
  for (int c = 0; c < L::PIECES; ++c) {
#pragma unroll
    for (int e = 0; e < L::PIECE; e += 2) {
      *(threadgroup float2*)(row + (c * L::VALUE_LANES + int(value_lane)) * L::PIECE + e) =
          float2(outputs[c * L::PIECE + e], outputs[c * L::PIECE + e + 1]);
    }
  }
}

}  // namespace pamx
