// Decode over a latent cache (DeepSeek-style MLA, absorbed form): mla.h has the algorithm.
//
//   grid         (ceil(heads / 16), partitions or 1, work rows)
//   threadgroup  (32 * MLA_SIMDGROUPS)
//   buffers      params.h: AttentionBuffer, read as it says of latent attention. mla_decode writes
//                kOut; mla_decode_split kPartialOut and kPartialStats, for split_kv_reduce
//
// 16 heads of one token share each read of the latent cache. A partition's bounds are absolute, and
// tiles of tokens begin at multiples of their size: of all that others in the step decide, a row's
// bits depend on the partition size alone.
#include "features.h"
#include "mla.h"
#include "params.h"
#include "tile.h"

using namespace metal;
using namespace pamx;

constant constexpr int HEAD_TILES = limits::MLA_DECODE_HEADS / 8;

template <typename T, typename P, int LATENT, int ROPE>
[[kernel, max_total_threads_per_threadgroup(32 * limits::MLA_SIMDGROUPS)]]
void mla_decode(const device T* queries [[buffer(kQueries)]],
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
  threadgroup float partial[MlaTile<HEAD_TILES>::PARTIAL];
  threadgroup float weights[MlaTile<HEAD_TILES>::WEIGHTS];
  threadgroup float2 parts[MlaTile<HEAD_TILES>::ROWS];
  Fragment<float> output[HEAD_TILES * mla_output<LATENT>()];
  const WorkRow row = work_rows[group.z];
  const Tile tile = tile_of(row, context_lens, query_starts, params);
  const uint first_head = group.x * limits::MLA_DECODE_HEADS;
  mla_attend<T, P, LATENT, ROPE, HEAD_TILES, HEAD_TILES>(
      queries, latents, ropes, block_tables + ulong(row.sequence) * params.max_blocks, row, tile, 0,
      tile.end_of(0), first_head, params, partial, weights, parts, output, simdgroup, lane);
  mla_store_rows<T, LATENT, HEAD_TILES, HEAD_TILES>(out, sinks, row, first_head, params, parts,
                                                    output, simdgroup, lane);
}

template <typename T, typename P, int LATENT, int ROPE>
[[kernel, max_total_threads_per_threadgroup(32 * limits::MLA_SIMDGROUPS)]]
void mla_decode_split(const device T* queries [[buffer(kQueries)]],
                      const device P* latents [[buffer(kKeyPool)]],
                      const device P* ropes [[buffer(kValuePool)]],
                      const device int* block_tables [[buffer(kBlockTables)]],
                      const device int* context_lens [[buffer(kContextLens)]],
                      const device int* query_starts [[buffer(kQueryStarts)]],
                      device float* partial_out [[buffer(kPartialOut)]],
                      device float2* partial_stats [[buffer(kPartialStats)]],
                      const device WorkRow* work_rows [[buffer(kWorkRows)]],
                      constant AttentionParams& params [[buffer(kParams)]],
                      uint3 group [[threadgroup_position_in_grid]],
                      ushort simdgroup [[simdgroup_index_in_threadgroup]],
                      ushort lane [[thread_index_in_simdgroup]]) {
  threadgroup float partial[MlaTile<HEAD_TILES>::PARTIAL];
  threadgroup float weights[MlaTile<HEAD_TILES>::WEIGHTS];
  threadgroup float2 parts[MlaTile<HEAD_TILES>::ROWS];
  Fragment<float> output[HEAD_TILES * mla_output<LATENT>()];
  const WorkRow row = work_rows[group.z];
  const Tile tile = tile_of(row, context_lens, query_starts, params);
  const uint first_head = group.x * limits::MLA_DECODE_HEADS;
  const int begin = int(group.y * params.partition);
  mla_attend<T, P, LATENT, ROPE, HEAD_TILES, HEAD_TILES>(
      queries, latents, ropes, block_tables + ulong(row.sequence) * params.max_blocks, row, tile,
      begin, begin + int(params.partition), first_head, params, partial, weights, parts, output,
      simdgroup, lane);
#pragma unroll
  for (int r = 0; r < HEAD_TILES; ++r) {
    const uint head = first_head + 8 * r + fragment_row(lane);
    if (head >= params.heads) continue;
    const float2 part = parts[r * 8 + fragment_row(lane)];
    const ulong index = (ulong(group.z) * params.heads + head) * params.num_partitions + group.y;
    mla_store<float, LATENT>(partial_out + index * LATENT, output + r * mla_output<LATENT>(),
                             inverse(part.y), simdgroup, lane);
    if (simdgroup == 0 && fragment_column(lane) == 0) partial_stats[index] = part;
  }
}
