// What both forms of gqa_decode agree on: the tokens that a work row sees of a partition, and where
// its partial result goes.
#pragma once

#include <metal_stdlib>

#include "params.h"

constant bool has_window [[function_constant(pamx::kHasWindow)]];
constant bool has_softcap [[function_constant(pamx::kHasSoftcap)]];

namespace pamx {

using namespace metal;

// Tokens [first, end), counted from the partition's own first token `start`; none if first >= end.
struct Span {
  int start;
  int first;
  int end;
};

inline Span span_of(WorkRow row, uint partition, const device int* context_lens,
                    const device int* query_starts, constant AttentionParams& params) {
  const int after = query_starts[row.sequence + 1] - int(row.first_token) - 1;
  const int seen = context_lens[row.sequence] - after;  // the query's own position included
  Span span;
  span.start = int(partition * params.partition);
  span.first = has_window ? max(0, seen - int(params.window) - span.start) : 0;
  span.end = min(int(params.partition), seen - span.start);
  return span;
}

inline ulong partial_index(uint row, uint head, uint partition, constant AttentionParams& params) {
  return (ulong(row) * params.heads + head) * params.num_partitions + partition;
}

}  // namespace pamx
