// The CPU paged-attention kernel's contract: plain pointers and strides, no MLX, no allocation.
#pragma once

#include <cstddef>
#include <cstdint>

#include "cpu/dtype.hpp"

namespace pamx::cpu {

// Rows of an activation tensor: the element for (token, head, i) is at
// data + token * token_stride + head * head_stride + i * dim_stride, counted in elements.
struct Rows {
  void* data = nullptr;
  int64_t token_stride = 0;
  int64_t head_stride = 0;
  int64_t dim_stride = 1;
};

// One layer's call. Everything is in `dtype`; arithmetic is in float32.
struct PagedAttention {
  Dtype dtype = Dtype::float32;
  int32_t heads = 0;
  int32_t kv_heads = 0;
  int32_t k_dim = 0;
  int32_t v_dim = 0;
  float scale = 1.0f;
  float softcap = 0.0f;          // 0: none
  int32_t window = 0;            // 0: none
  const float* sinks = nullptr;  // [heads] or null

  Rows queries;                // heads x k_dim
  Rows keys;                   // kv_heads x k_dim; data null: nothing to write
  Rows values;                 // kv_heads x v_dim
  Rows out;                    // heads x v_dim, dim_stride 1
  void* key_pool = nullptr;    // [num_blocks, block_size, kv_heads, k_dim], contiguous
  void* value_pool = nullptr;  // [num_blocks, block_size, kv_heads, v_dim], contiguous

  int32_t num_sequences = 0;
  int32_t block_size = 0;
  int32_t max_blocks = 0;
  const int32_t* query_starts = nullptr;
  const int32_t* context_lens = nullptr;
  const int32_t* block_tables = nullptr;
};

// One independent piece of the attention: the query tokens [begin, end) of a sequence, for one
// KV head and all the query heads that share it.
struct Tile {
  int32_t sequence;
  int32_t kv_head;
  int32_t begin;
  int32_t end;
};

// Query tokens a tile covers: as many as keep about 32 query rows on one read of K and V.
constexpr int32_t kTileRows = 32;
inline int32_t tile_tokens(int32_t group) { return group >= kTileRows ? 1 : kTileRows / group; }

// Floats of scratch that attend_tile needs; 64-byte alignment is not required.
inline int64_t scratch_floats(const PagedAttention& a) {
  const int64_t group = a.heads / a.kv_heads;
  const int64_t rows = tile_tokens(static_cast<int32_t>(group)) * group;
  const int64_t page = int64_t{a.block_size} * (a.k_dim > a.v_dim ? a.k_dim : a.v_dim);
  return rows * (a.k_dim + a.v_dim + a.block_size + 2) + page;
}

// Kernels for one instruction set.
struct Kernels {
  void (*write_rows)(const PagedAttention&);
  void (*attend_tile)(const PagedAttention&, const Tile&, float* scratch);
};

namespace portable {
extern const Kernels kernels;
}
namespace avx2 {
extern const Kernels kernels;
}

// The kernels for this process's instruction set.
const Kernels& kernels();

// Writes the new rows, then attends, on the shared worker pool.
void run(const PagedAttention& call);

}  // namespace pamx::cpu
