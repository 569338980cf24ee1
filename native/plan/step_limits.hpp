// The largest steps that are planned, and the refusal of larger ones: far above any model's, and
// low enough that the planners' arithmetic stays within 64 bits and their lists within memory.
#pragma once

#include <cstdint>

#include "core/status.hpp"

namespace pamx::plan {

constexpr int64_t kMostQueryTokens = int64_t{1} << 24;  // of all sequences of a step
constexpr int64_t kLongestContext = int64_t{1} << 30;   // tokens
constexpr int64_t kMostHeads = int64_t{1} << 16;
constexpr int64_t kLargestHead = int64_t{1} << 16;  // elements

// Throws Error(PAMX_INVALID_ARGUMENT), as the other one.
inline void check_heads(int32_t heads, int32_t kv_heads, int32_t k_dim, int32_t v_dim) {
  require(kv_heads >= 1 && heads >= 1 && heads % kv_heads == 0,
          std::to_string(heads) + " query heads are not a multiple of " + std::to_string(kv_heads) +
              " KV heads");
  require(heads <= kMostHeads, "a layer of " + std::to_string(heads) +
                                   " query heads cannot be planned; the most are " +
                                   std::to_string(kMostHeads));
  require(k_dim >= 1 && v_dim >= 1, "head sizes must be at least 1, not " + std::to_string(k_dim) +
                                        " and " + std::to_string(v_dim));
  require(k_dim <= kLargestHead && v_dim <= kLargestHead,
          "heads of " + std::to_string(k_dim) + " and " + std::to_string(v_dim) +
              " elements cannot be planned; the most are " + std::to_string(kLargestHead));
}

// query_starts: [count + 1], context_lens: [count].
inline void check_sequences(int32_t count, const int32_t* query_starts,
                            const int32_t* context_lens) {
  require(count >= 1 && query_starts[0] == 0, "a step has sequences, from token 0 on");
  for (int32_t s = 0; s < count; ++s) {
    const int64_t queries = int64_t{query_starts[s + 1]} - query_starts[s];
    require(queries >= 1 && context_lens[s] >= queries,
            "sequence " + std::to_string(s) + " has " + std::to_string(queries) +
                " query tokens of " + std::to_string(context_lens[s]));
    require(context_lens[s] <= kLongestContext,
            "sequence " + std::to_string(s) + " has " + std::to_string(context_lens[s]) +
                " tokens; the longest that can be planned has " + std::to_string(kLongestContext));
    require(query_starts[s + 1] <= kMostQueryTokens,
            "the step has " + std::to_string(query_starts[s + 1]) +
                " query tokens up to sequence " + std::to_string(s) +
                "; the most that can be planned are " + std::to_string(kMostQueryTokens));
  }
}

}  // namespace pamx::plan
