// Every threshold of the GPU path, compiled by the shaders and by the planner alike.
//
// C++14 and the Metal shading language share this file: plain constants, nothing else.
#pragma once

#ifdef __METAL_VERSION__
#define PAMX_LIMIT constant constexpr
#else
#include <cstdint>
#define PAMX_LIMIT constexpr
#endif

namespace pamx {
namespace limits {

// ---- pages and partitions ---------------------------------------------------------------------

// Tokens that one threadgroup of a split kernel attends to. Partition p of a sequence is always
// [p * P, (p + 1) * P), whatever the window: the same split for the same P.
PAMX_LIMIT uint32_t PARTITION_SIZE = 512;
PAMX_LIMIT uint32_t SMALL_PARTITION_SIZE = 256;
PAMX_LIMIT uint32_t LARGEST_BLOCK_SIZE = 32;  // tokens; the block sizes are 32, 16 and 8
PAMX_LIMIT uint32_t MIDDLE_BLOCK_SIZE = 16;
PAMX_LIMIT uint32_t SMALLEST_BLOCK_SIZE = 8;

// ---- geometry ---------------------------------------------------------------------------------

PAMX_LIMIT uint32_t LARGEST_HEAD_DIM = 512;
PAMX_LIMIT uint32_t HEAD_DIM_STEP = 8;
PAMX_LIMIT uint32_t LARGEST_GQA_GROUP = 8;  // query heads of a KV head that gqa_decode serves

// ---- the machine ------------------------------------------------------------------------------

PAMX_LIMIT uint32_t SIMD_WIDTH = 32;
PAMX_LIMIT uint32_t LARGEST_THREADGROUP = 1024;         // threads
PAMX_LIMIT uint32_t THREADGROUP_MEMORY = 32 * 1024;     // bytes
PAMX_LIMIT uint32_t SIMDGROUPS_PER_CORE = 33;           // work that fills one GPU core
PAMX_LIMIT uint64_t SCRATCH_CAP = uint64_t(512) << 20;  // bytes of partial results, one call
// Partitions of a row that split_kv_reduce merges: their weights, a float each, take half of the
// threadgroup memory.
PAMX_LIMIT uint32_t REDUCER_CAPACITY = 4096;

// ---- what the planner chooses by --------------------------------------------------------------

#ifndef __METAL_VERSION__
// Query heads, KV heads and head size that gqa_decode's work budget was measured for (vllm-metal,
// as below); other groups follow the same rule.
PAMX_LIMIT uint32_t TUNED_GEOMETRIES[][3] = {
    {32, 8, 128}, {24, 4, 256}, {16, 2, 128}, {16, 2, 256}};
#endif
PAMX_LIMIT uint32_t FEWEST_CORES = 7;             // of any Apple GPU: assumed where nobody knows
PAMX_LIMIT uint32_t FEWEST_SPLIT_PARTITIONS = 2;  // full ones of a row, from which split-KV pays
// Floats of output that a group of query heads accumulates while it shares a page: spread over a
// simdgroup they take half of the 128 registers that a thread of an Apple GPU can address.
PAMX_LIMIT uint32_t LARGEST_SHARED_OUTPUT = 64 * SIMD_WIDTH;
PAMX_LIMIT uint32_t LEAST_TILE_SHARE = 4;  // tiles pay from 1/4 of their rows filled, on average
// applegpu_g<n>: the first generation with tensor units; phones (applegpu_g<n>p) count one later.
// As in MLX, mlx/backend/metal/device.cpp, is_nax_available.
PAMX_LIMIT uint32_t TENSOR_GENERATION = 17;
PAMX_LIMIT uint32_t TENSOR_GENERATION_PHONE = 18;

// Calibration of several requests on a 10-core M3 (applegpu_g15g), published with vllm-metal's
// batched GQA decode (github.com/vllm-project/vllm-metal, docs/gqa-decode.md).
PAMX_LIMIT uint32_t M3_CORES = 10;
PAMX_LIMIT uint32_t M3_SLOW_REQUESTS = 6;     // of (32, 8, 128): slower split
PAMX_LIMIT uint32_t M3_SLOW_CONTEXT = 704;    // tokens; the longest is below
PAMX_LIMIT uint32_t M3_SMALL_HEAD_DIM = 256;  // takes the small partition
PAMX_LIMIT uint32_t M3_SMALL_FROM_16 = 4096;  // once the longest has these tokens, in blocks of 16
PAMX_LIMIT uint32_t M3_SMALL_FROM_32 = 8192;  // and in blocks of 32

// ---- softmax ----------------------------------------------------------------------------------

// Finite, so that no difference of two of them is NaN.
PAMX_LIMIT float NO_MAXIMUM = -1.0e30f;  // a running maximum before the first score
PAMX_LIMIT float MASKED = -3.0e38f;      // a score nobody sees: exp2(MASKED - NO_MAXIMUM) is 0
PAMX_LIMIT float LOG2_E = 1.4426950408889634f;

// ---- threadgroups of single kernels -------------------------------------------------------------

PAMX_LIMIT uint32_t UNIFIED_SIMDGROUPS = 4;  // paged_attention
PAMX_LIMIT uint32_t UNIFIED_TOKENS = 32;  // a simdgroup of it takes at a time; divides partitions
PAMX_LIMIT uint32_t PREFILL_TOKENS = 32;  // query tokens of prefill_tiled: 8 a simdgroup
PAMX_LIMIT uint32_t PREFILL_NAX_TOKENS = 64;  // query tokens of prefill_nax: 16 a simdgroup
PAMX_LIMIT uint32_t MLA_SIMDGROUPS = 8;       // mla_decode and mla_prefill
PAMX_LIMIT uint32_t MLA_DECODE_HEADS = 16;    // query heads of mla_decode
PAMX_LIMIT uint32_t MLA_PREFILL_TOKENS = 4;   // query tokens of mla_prefill, 8 heads each
PAMX_LIMIT uint32_t REDUCER_THREADS = 256;    // split_kv_reduce: these, or twice as many
PAMX_LIMIT uint32_t REDUCER_FEW = 128;        // up to so many heads and rows
PAMX_LIMIT uint32_t PAGES_THREADS = 256;      // kv_write, copy_blocks, gather_blocks
PAMX_LIMIT uint32_t COPY_BYTES = 16;          // a thread of these moves at once

}  // namespace limits
}  // namespace pamx
