// What the query tokens of a work row see, for kernels that take several tokens at a time.
#pragma once

#include <metal_stdlib>

#include "features.h"
#include "params.h"

namespace pamx {

using namespace metal;

// Positions count from the start of the sequence.
struct Tile {
  int first;   // position of the row's first query token
  int tokens;  // of the row
  int window;  // read if has_window

  // Positions [start_of(t), end_of(t)) are seen by token t of the row.
  int start_of(int token) const thread {
    return has_window ? max(0, first + token + 1 - window) : 0;
  }
  int end_of(int token) const thread { return first + token + 1; }
  int last() const thread { return tokens - 1; }
};

inline Tile tile_of(WorkRow row, const device int* context_lens, const device int* query_starts,
                    constant AttentionParams& params) {
  const int start = query_starts[row.sequence];
  const int new_tokens = query_starts[row.sequence + 1] - start;
  Tile tile;
  tile.first = context_lens[row.sequence] - new_tokens + (int(row.first_token) - start);
  tile.tokens = int(row.tokens);
  tile.window = int(min(params.window, 0x7fffffffu));
  return tile;
}

}  // namespace pamx
