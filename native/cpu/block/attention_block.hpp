// A decoder layer's attention as one call: norm, projections, rope, paged attention, residual.
#pragma once

#include "core/batch.hpp"
#include "cpu/attention/attention.hpp"
#include "cpu/block/block.hpp"

namespace pamx::cpu {

// out = x + residual_scale * output_norm(O(attend(rope(norm(Q x')), rope(norm(K x')), V x')))
// with x' = input_norm(x). Immutable; see pamx_attention_block_desc for each field.
struct AttentionBlock {
  Compute compute = Compute::fast;
  int32_t heads = 0;
  int32_t kv_heads = 0;
  int32_t head_dim = 0;
  int32_t v_dim = 0;
  BlockNorm input_norm, query_norm, key_norm, output_norm;
  std::vector<std::shared_ptr<const Matrix>> projections;  // q, k, v; or one with rows q | k | v
  std::shared_ptr<const Matrix> output;
  std::shared_ptr<const Rope> rope;  // null: none
  float residual_scale = 1.0f;
  float scale = 1.0f;
  float softcap = 0.0f;
  std::vector<float> sinks;  // empty: none

  static std::shared_ptr<const AttentionBlock> create(const pamx_attention_block_desc* desc);

  int32_t width() const { return output->format.outputs; }
  int64_t query_size() const { return int64_t{heads} * head_dim; }
  int64_t key_size() const { return int64_t{kv_heads} * head_dim; }
  int64_t value_size() const { return int64_t{kv_heads} * v_dim; }
};

struct AttentionBlockCall {
  const AttentionBlock* block = nullptr;
  const Batch* batch = nullptr;
  int32_t window = 0;     // 0: none
  int32_t partition = 0;  // tokens; 0: the planner's
  RowView x;              // the batch's tokens
  void* out = nullptr;
  Dtype pool_dtype = Dtype::float32;
  void* key_pool = nullptr;
  void* value_pool = nullptr;
};
void run(const AttentionBlockCall& call);

}  // namespace pamx::cpu

// The handle that C holds; operations that were queued keep their own share.
struct pamx_attention_block {
  std::shared_ptr<const pamx::cpu::AttentionBlock> block;
};
