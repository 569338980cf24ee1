// How a simdgroup of gqa_decode's group-sharing form spreads over the tokens that it takes at once.
#pragma once

#include <metal_stdlib>

namespace pamx {

// The largest power of two that divides n: n & -n.
//
// P: the pools' type, D: head size, G: query heads of the KV head, BLOCK: tokens a page, STEP:
// tokens that a simdgroup takes at once.
template <typename P, int D, int G, int BLOCK, int STEP>
struct GroupLayout {
  static constexpr constant int DIM = D;
  static constexpr constant int GROUP = G;
  static constexpr constant int PAGE_TOKENS = BLOCK;
  static constexpr constant int TOKENS = STEP;

  // Keys: a load takes 16 bytes, and a lane two of them of each token, more only where the head
  // size asks for it. More lanes a token would read less of the queries from threadgroup memory and
  // take more shuffles.
  static constexpr constant int CHUNK = 16 / int(sizeof(P));  // elements
  static constexpr constant int CHUNKS = D / CHUNK;           // of a token
  static constexpr constant int KEY_LANES =
      (CHUNKS & -CHUNKS) < CHUNKS / 2 ? (CHUNKS & -CHUNKS) : CHUNKS / 2;
  static constexpr constant int KEY_CHUNKS = CHUNKS / KEY_LANES;  // of a token, a lane
  static constexpr constant int KEY_TOKENS = 32 / KEY_LANES;      // at once
  static constexpr constant int KEY_ROUNDS = STEP / KEY_TOKENS;
  static constexpr constant int QUADS = CHUNK / 4;  // float4 of a chunk

  // Values: a lane keeps the same VALUE_ELEMENTS dimensions of every token, four or more, in pieces
  // of up to 16 bytes that are even in elements.
  static constexpr constant int PAIRS = D / 2;
  static constexpr constant int MOST_LANES = (PAIRS & -PAIRS) < D / 4 ? (PAIRS & -PAIRS) : D / 4;
  static constexpr constant int VALUE_LANES = MOST_LANES < 32 ? MOST_LANES : 32;
  static constexpr constant int VALUE_ELEMENTS = D / VALUE_LANES;
  static constexpr constant int VALUE_TOKENS = 32 / VALUE_LANES;  // at once
  static constexpr constant int VALUE_ROUNDS = STEP / VALUE_TOKENS;
  static constexpr constant int PIECE = VALUE_ELEMENTS % 8 == 0 && sizeof(P) == 2 ? 8
                                        : VALUE_ELEMENTS % 4 == 0                 ? 4
                                                                                  : 2;
  static constexpr constant int PIECES = VALUE_ELEMENTS / PIECE;

  // Scores: a lane adds up its part of KEY_ROUNDS tokens for HEADS heads, and owns OWN of the sums
  // afterwards: OWN_ROUNDS tokens of OWN_HEADS heads. Heads are padded to a power of two that gives
  // every lane something to own.
  static constexpr constant int PADDED = G > 4 ? 8 : G > 2 ? 4 : G;
  static constexpr constant int HEADS =
      PADDED * KEY_ROUNDS < KEY_LANES ? KEY_LANES / KEY_ROUNDS : PADDED;
  static constexpr constant int SCORES = HEADS * KEY_ROUNDS;
  static constexpr constant int OWN = SCORES / KEY_LANES;
  static constexpr constant int OWN_ROUNDS = OWN < KEY_ROUNDS ? OWN : KEY_ROUNDS;
  static constexpr constant int OWN_HEADS = OWN / OWN_ROUNDS;
  static constexpr constant int SHARERS = KEY_ROUNDS / OWN_ROUNDS;  // lanes that own one head

  // Pages. A round of keys lies in one page, unless it has more tokens than a page (head size 80).
  static constexpr constant int KEY_PAGES = KEY_TOKENS > BLOCK ? KEY_TOKENS / BLOCK : 1;
  // Lane l holds the page id of step l / PAGES, page l % PAGES of it.
  static constexpr constant int PAGES = STEP > BLOCK ? STEP / BLOCK : 1;  // of a step
  static constexpr constant int STEPS = 32 / PAGES;

  // Registers that hold a step as it was loaded.
  static constexpr constant int CHUNK_WORDS = 4;
  static constexpr constant int PIECE_WORDS = PIECE * int(sizeof(P)) / 4;
  static constexpr constant int KEY_WORDS = KEY_ROUNDS * KEY_CHUNKS * CHUNK_WORDS;
  static constexpr constant int VALUE_WORDS = VALUE_ROUNDS * PIECES * PIECE_WORDS;

  static_assert(D % 16 == 0 && G >= 1 && G <= 8, "no layout for this head size or group");
  static_assert(KEY_ROUNDS >= 1 && KEY_ROUNDS * KEY_TOKENS == STEP, "too few tokens a step");
  static_assert(STEP % BLOCK == 0 || BLOCK % STEP == 0, "a step is whole pages, or a part of one");
};

}  // namespace pamx
