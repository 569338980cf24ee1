// Copies whole blocks inside one pool: copy-on-write, and moves before a swap.
//
//   grid         (16-byte words of a block / PAGES_THREADS, pairs) threadgroups
//   threadgroup  (PAGES_THREADS, 1, 1)
//   buffers      CopyBlocksBuffer of params.h
//
// No block is both a source and a target, so that the order of the pairs does not matter.
#include <metal_stdlib>

#include "params.h"

using namespace metal;
using namespace pamx;

[[kernel]] void copy_blocks(device uint4* pool [[buffer(kCopyPool)]],
                            const device int2* pairs [[buffer(kCopyPairs)]],
                            constant CopyBlocksParams& params [[buffer(kCopyParams)]],
                            uint3 place [[thread_position_in_grid]]) {
  const uint words = params.block_bytes / limits::COPY_BYTES;
  if (place.x >= words || place.y >= params.pairs) return;
  const int2 pair = pairs[place.y];
  pool[ulong(pair.y) * words + place.x] = pool[ulong(pair.x) * words + place.x];
}
