// A decoder layer's gated MLP as one call: norm, gate and up, down, residual.
#pragma once

#include "cpu/block/block.hpp"

namespace pamx::cpu {

// out = x + residual_scale * output_norm(down(act(gate(x')) * up(x'))) with x' = input_norm(x).
// Immutable; see pamx_mlp_block_desc for each field.
struct MlpBlock {
  Compute compute = Compute::fast;
  Gate kind = Gate::silu;
  BlockNorm input_norm, output_norm;
  std::shared_ptr<const Matrix> gate_owner, up_owner;  // what `gate` and `up` are parts of
  Matrix gate, up;
  std::shared_ptr<const Matrix> down;
  float residual_scale = 1.0f;
  bool has_residual = true;

  static std::shared_ptr<const MlpBlock> create(const pamx_mlp_block_desc* desc);

  int32_t inputs() const { return gate.format.inputs; }
  int32_t hidden() const { return gate.format.outputs; }
  int32_t outputs() const { return down->format.outputs; }
};

struct MlpBlockCall {
  const MlpBlock* block = nullptr;
  RowView x;
  void* out = nullptr;  // in x's dtype
};
void run(const MlpBlockCall& call);

}  // namespace pamx::cpu

// The handle that C holds; operations that were queued keep their own share.
struct pamx_mlp_block {
  std::shared_ptr<const pamx::cpu::MlpBlock> block;
};
