// Prefill over a latent cache (DeepSeek-style MLA, absorbed form): mla.h has the algorithm.
//
//   grid         (ceil(heads / 8), 1, work rows)
//   threadgroup  (32 * MLA_SIMDGROUPS)
//   buffers      params.h: AttentionBuffer, read as it says of latent attention; kPartialOut and
//                kPartialStats are not read
//
// A threadgroup takes 8 heads of MLA_PREFILL_TOKENS query tokens, a row tile for each token.
#include "features.h"
#include "mla.h"
#include "params.h"
#include "tile.h"

using namespace metal;
using namespace pamx;

constant constexpr int ROW_TILES = limits::MLA_PREFILL_TOKENS;

template <typename T, typename P, int LATENT, int ROPE>
[[kernel, max_total_threads_per_threadgroup(32 * limits::MLA_SIMDGROUPS)]]
void mla_prefill(const device T* queries [[buffer(kQueries)]],
                 const device P* latents [[buffer(kKeyPool)]],
                 const device P* ropes [[buffer(kValuePool)]],
                 const device int* block_tables [[buffer(kBlockTables)]],
                 const device int* context_lens [[buffer(kContextLens)]],
                 const device int* query_starts [[buffer(kQueryStarts)]],
                 device T* out [[buffer(kOut)]],
                 const device float* sinks [[buffer(kSinks), function_constant(has_sinks)]],
                 const device WorkRow* work_rows [[buffer(kWorkRows)]],
                 constant AttentionParams& params [[buffer(kParams)]],
                 uint3 group [[threadgroup_position_in_grid]],
                 ushort simdgroup [[simdgroup_index_in_threadgroup]],
                 ushort lane [[thread_index_in_simdgroup]]) {
  threadgroup float partial[MlaTile<ROW_TILES>::PARTIAL];
  threadgroup float weights[MlaTile<ROW_TILES>::WEIGHTS];
  threadgroup float2 parts[MlaTile<ROW_TILES>::ROWS];
  Fragment<float> output[ROW_TILES * mla_output<LATENT>()];
  const WorkRow row = work_rows[group.z];
  const Tile tile = tile_of(row, context_lens, query_starts, params);
  const uint first_head = group.x * 8;
  mla_attend<T, P, LATENT, ROPE, 1, ROW_TILES>(
      queries, latents, ropes, block_tables + ulong(row.sequence) * params.max_blocks, row, tile, 0,
      tile.end_of(tile.last()), first_head, params, partial, weights, parts, output, simdgroup,
      lane);
  mla_store_rows<T, LATENT, 1, ROW_TILES>(out, sinks, row, first_head, params, parts, output,
                                          simdgroup, lane);
}
