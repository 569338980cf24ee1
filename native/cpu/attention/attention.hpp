// The CPU paged-attention kernel's contract: plain pointers and strides, no MLX.
#pragma once

#include <cstddef>
#include <cstdint>

#include "core/dtype.hpp"
#include "plan/cpu_attention.hpp"

namespace pamx::cpu {

// Rows of an activation tensor: the element for (token, head, i) is at
// data + token * token_stride + head * head_stride + i * dim_stride, counted in elements.
struct Rows {
  void* data = nullptr;
  int64_t token_stride = 0;
  int64_t head_stride = 0;
  int64_t dim_stride = 1;
};

// One layer's call. Arithmetic is in float32. The pools are in the rows' dtype, or in a 16-bit
// format below float32 rows: a row is then rounded to nearest even as it is written.
struct PagedAttention {
  Dtype dtype = Dtype::float32;       // of queries, keys, values and out
  Dtype pool_dtype = Dtype::float32;  // of key_pool and value_pool
  int32_t heads = 0;
  int32_t kv_heads = 0;
  int32_t k_dim = 0;
  int32_t v_dim = 0;
  float scale = 1.0f;
  float softcap = 0.0f;          // 0: none
  int32_t window = 0;            // 0: none
  int32_t partition = 0;         // tokens; 0: the planner's
  const float* sinks = nullptr;  // [heads] or null

  Rows queries;                // heads x k_dim
  Rows keys;                   // kv_heads x k_dim; data null: nothing to write
  Rows values;                 // kv_heads x v_dim
  Rows out;                    // heads x v_dim, dim_stride 1
  void* key_pool = nullptr;    // [num_blocks, block_size, kv_heads, k_dim], contiguous
  void* value_pool = nullptr;  // [num_blocks, block_size, kv_heads, v_dim], contiguous

  int32_t num_sequences = 0;
  int32_t block_size = 0;
  int32_t max_blocks = 0;  // row length of block_tables
  const int32_t* query_starts = nullptr;
  const int32_t* context_lens = nullptr;
  const int32_t* block_tables = nullptr;
};

// A call under way: what all of its items share.
struct AttentionWork {
  const PagedAttention* call;
  int32_t partition;
  float* partials;
};

// Kernels for one instruction set.
struct Kernels {
  // The new rows of a sequence's query tokens [begin, end).
  void (*write_rows)(const PagedAttention&, int32_t sequence, int32_t begin, int32_t end);
  void (*attend)(const AttentionWork&, const plan::AttentionItem&, float* scratch);
  void (*fold)(const AttentionWork&, const plan::AttentionFold&, float* scratch);
};

namespace portable {
extern const Kernels kernels;
}
namespace neon {
extern const Kernels kernels;
}
namespace avx2 {
extern const Kernels kernels;
}
namespace avx512 {
extern const Kernels kernels;
}

// The kernels for this process's instruction set.
const Kernels& kernels();

// For whoever queues a call: records it for this thread, and returns the partition that is forced
// on it, or 0. Throws Error if the call cannot have what is forced.
int32_t queue(const plan::AttentionGeometry& geometry, int32_t block_size);

// The plan that run() follows for this call.
void plan_of(const PagedAttention& call, plan::AttentionPlan* plan);

// Writes the new rows, then attends, on the shared worker pool. A row's bits depend on its own
// query and its sequence's keys and values up to it alone.
void run(const PagedAttention& call);

}  // namespace pamx::cpu
