// What host and shaders say to each other: argument structs, buffer indices, function constants.
//
// C++14 and the Metal shading language share this file; every struct has one layout in both.
#pragma once

#include "limits.h"

namespace pamx {

// ---- attention --------------------------------------------------------------------------------

// Query tokens that one row of a launch's grid serves: `tokens` packed tokens from `first_token`,
// all of them of one sequence. Decode kernels and the unified kernel take one token a row, tiled
// kernels as many as a tile holds.
struct WorkRow {
  uint32_t sequence;
  uint32_t first_token;
  uint32_t tokens;
};

struct AttentionParams {
  uint32_t heads;
  uint32_t kv_heads;
  uint32_t k_dim;           // of queries and keys
  uint32_t v_dim;           // of values and output
  uint32_t block_size;      // tokens a block
  uint32_t max_blocks;      // row length of block_tables
  uint32_t rows;            // work rows of this launch
  uint32_t partition;       // tokens a partition; 0: not split, the kernel writes `out` itself
  uint32_t num_partitions;  // partitions that scratch has room for, each row
  uint32_t window;          // read if HAS_WINDOW: positions a query sees, its own included
  float scale_log2;         // softmax scale times log2(e)
  float softcap_log2;  // read if HAS_SOFTCAP: scores become cap * tanh(score / cap), log2 space
  // Elements from one token, and one head, to the next; the elements of a head are contiguous.
  uint64_t query_token_stride;
  uint64_t query_head_stride;
};

// Buffers of every attention kernel. T is float, half or bfloat: the rows' type; P is T or, below
// float rows, a 16-bit type: the pools'. Slots past a sequence's length may hold anything, NaN too.
enum AttentionBuffer {
  kQueries = 0,       // T [tokens, heads, k_dim], by the strides
  kKeyPool = 1,       // P [num_blocks, block_size, kv_heads, k_dim]
  kValuePool = 2,     // P [num_blocks, block_size, kv_heads, v_dim]
  kBlockTables = 3,   // int [sequences, max_blocks]
  kContextLens = 4,   // int [sequences], new tokens included
  kQueryStarts = 5,   // int [sequences + 1]
  kOut = 6,           // T [tokens, heads, v_dim]
  kPartialOut = 7,    // float [rows, heads, num_partitions, v_dim], each normalised by its own sum
  kPartialStats = 8,  // float2 [rows, heads, num_partitions]: maximum in log2 space, sum of exp2
  kSinks = 9,         // float [heads]; bound if HAS_SINKS
  kWorkRows = 10,     // WorkRow [rows]
  kParams = 11        // AttentionParams
};

// Latent attention (mla_decode, mla_prefill) has the same buffers and params, read so: kv_heads is
// 1; kQueries are absorbed, k_dim = latent + rope elements a head, the latent ones first; kKeyPool
// holds the latents, [num_blocks, block_size, 1, v_dim], which are keys and values; kValuePool
// holds the rotary keys, [num_blocks, block_size, 1, k_dim - v_dim]; v_dim is the latent size.

// Function constants, the same indices in every kernel that has them.
enum FunctionConstant {
  kHasWindow = 0,   // bool
  kHasSoftcap = 1,  // bool
  kHasSinks = 2,    // bool: in unsplit kernels and the reducer; partials never hold the sink
  kBlockSize = 3    // uint
};

// ---- pages ------------------------------------------------------------------------------------

// kv_write: the new rows of a step, keys and values, into their slots. slot = block * block_size +
// offset.
struct KvWriteParams {
  uint32_t tokens;
  uint32_t kv_heads;
  uint32_t k_dim;
  uint32_t v_dim;
  uint64_t key_token_stride;  // elements; the elements of a head are contiguous
  uint64_t key_head_stride;
  uint64_t value_token_stride;
  uint64_t value_head_stride;
};

enum KvWriteBuffer {
  kNewKeys = 0,         // T [tokens, kv_heads, k_dim], by the strides
  kNewValues = 1,       // T [tokens, kv_heads, v_dim], by the strides
  kWriteKeyPool = 2,    // P
  kWriteValuePool = 3,  // P
  kSlotMapping = 4,     // long [tokens]: the slot of each token
  kWriteParams = 5
};

// copy_blocks and gather_blocks, for one pool at a time: copies move whole blocks inside the pool,
// gathers lay a sequence's tokens out densely.
struct CopyBlocksParams {
  uint32_t pairs;
  uint32_t block_bytes;  // a multiple of 16
};

enum CopyBlocksBuffer {
  kCopyPool = 0,
  kCopyPairs = 1,  // int2 [pairs]: source, target; no block is both
  kCopyParams = 2
};

struct GatherBlocksParams {
  uint32_t tokens;  // of the sequence
  uint32_t block_size;
  uint32_t token_bytes;  // kv_heads * dim * element size, a multiple of 16
};

enum GatherBlocksBuffer {
  kGatherPool = 0,
  kGatherBlockTable = 1,  // int [ceil(tokens / block_size)]
  kGatherOut = 2,         // [tokens, kv_heads, dim]
  kGatherParams = 3
};

}  // namespace pamx
