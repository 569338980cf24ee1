// Lays the tokens of one sequence out densely, from the blocks of one pool.
//
//   grid         (16-byte words of a token, tokens) by threadgroups of (x, PAGES_THREADS / x)
//   buffers      GatherBlocksBuffer of params.h
//
// Slots past the last token are not read.
#include <metal_stdlib>

#include "params.h"

using namespace metal;
using namespace pamx;

[[kernel]] void gather_blocks(const device uint4* pool [[buffer(kGatherPool)]],
                              const device int* block_table [[buffer(kGatherBlockTable)]],
                              device uint4* out [[buffer(kGatherOut)]],
                              constant GatherBlocksParams& params [[buffer(kGatherParams)]],
                              uint3 place [[thread_position_in_grid]]) {
  const uint words = params.token_bytes / limits::COPY_BYTES;
  const uint token = place.y;
  if (place.x >= words || token >= params.tokens) return;
  const ulong block = ulong(block_table[token / params.block_size]);
  const ulong slot = block * params.block_size + token % params.block_size;
  out[ulong(token) * words + place.x] = pool[slot * words + place.x];
}
