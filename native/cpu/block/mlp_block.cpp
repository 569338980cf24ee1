// The MLP block: validating a description, and its steps over a slab of rows.
#include "cpu/block/mlp_block.hpp"

#include <algorithm>
#include <cmath>

namespace pamx::cpu {

std::shared_ptr<const MlpBlock> MlpBlock::create(const pamx_mlp_block_desc* desc) {
  require(desc != nullptr, "the block's description is null");
  auto block = std::make_shared<MlpBlock>();
  MlpBlock& b = *block;
  b.compute = check_compute(desc->compute);
  require(desc->gate_kind >= PAMX_GATE_SILU && desc->gate_kind <= PAMX_GATE_RELU,
          "there is no gate of kind " + std::to_string(desc->gate_kind));
  b.kind = static_cast<Gate>(desc->gate_kind);
  b.has_residual = desc->residual != 0;

  require(desc->down != nullptr, "the down matrix is missing");
  const int32_t hidden = desc->down->matrix->format.inputs;
  b.down = desc->down->matrix;
  if (desc->fused_gate_up) {
    require(!desc->gate && !desc->up, "gate and up are given both fused and one by one");
    const int32_t inputs = desc->fused_gate_up->matrix->format.inputs;
    b.gate_owner = matrix_of(desc->fused_gate_up, "fused gate and up", 2 * hidden, inputs);
    require(hidden % kPanel == 0,
            "a fused gate and up matrix needs a hidden size that is a "
            "multiple of " +
                std::to_string(kPanel) + ", not " + std::to_string(hidden));
    b.gate = slice(*b.gate_owner, 0, hidden);
    b.up = slice(*b.gate_owner, hidden, hidden);
  } else {
    require(desc->gate != nullptr, "the gate matrix is missing");
    const int32_t inputs = desc->gate->matrix->format.inputs;
    b.gate_owner = matrix_of(desc->gate, "gate", hidden, inputs);
    b.up_owner = matrix_of(desc->up, "up", hidden, inputs);
    b.gate = *b.gate_owner;
    b.up = *b.up_owner;
  }
  require(!b.has_residual || b.outputs() == b.inputs(),
          "x has rows of " + std::to_string(b.inputs()) + " and the down matrix gives " +
              std::to_string(b.outputs()) + ": they cannot be added");
  b.input_norm = BlockNorm::create(desc->input_norm, "the input norm");
  check_size(b.input_norm, "the input norm", b.inputs());
  b.output_norm = BlockNorm::create(desc->output_norm, "the output norm");
  check_size(b.output_norm, "the output norm", b.outputs());
  require(std::isfinite(desc->residual_scale), "residual_scale is not finite");
  b.residual_scale = desc->residual_scale;
  return block;
}

void run(const MlpBlockCall& call) {
  const MlpBlock& b = *call.block;
  const int64_t inputs = b.inputs(), hidden = b.hidden();
  const int64_t wider = std::max<int64_t>(inputs, b.outputs());
  const int64_t floats = hidden + wider + (is_float_rows(call.x) ? 0 : inputs);
  const int64_t total = call.x.rows(), step = std::min(total, slab_rows(floats));
  float* middle = scratch(step * floats);
  float* normed = middle + step * hidden;
  float* x_buffer = normed + step * wider;
  const BlockOutput output{b.down.get(), &b.output_norm, b.residual_scale,
                           b.compute,    call.x.dtype,   call.out};
  for (int64_t begin = 0; begin < total; begin += step) {
    const int64_t rows = std::min(step, total - begin);
    const SlabInput in = read_slab(call.x, begin, rows, b.input_norm, x_buffer, normed);
    multiply_gated(in.normed, in.normed_stride, static_cast<int32_t>(rows), b.compute, b.gate, b.up,
                   b.kind, middle, hidden);
    // What was normalised has been used: its place serves the output.
    write_slab(output, begin, rows, middle, hidden, b.has_residual ? in.x : nullptr, in.x_stride,
               normed);
  }
}

}  // namespace pamx::cpu

extern "C" int pamx_mlp_block_create(const pamx_mlp_block_desc* desc, pamx_mlp_block** block) {
  return pamx::guarded([&] {
    pamx::require(block != nullptr, "the place for the new block is null");
    *block = nullptr;
    *block = new pamx_mlp_block{pamx::cpu::MlpBlock::create(desc)};
  });
}

extern "C" void pamx_mlp_block_free(pamx_mlp_block* block) { delete block; }
