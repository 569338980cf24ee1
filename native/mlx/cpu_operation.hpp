// What the operations that only the CPU computes have in common as MLX primitives.
#pragma once

#include <stdexcept>
#include <vector>

#include "mlx/backend/cpu/encoder.h"
#include "mlx/memory.hpp"
#include "mlx/primitives.h"

namespace pamx {

// One result, row-contiguous, and one task on the stream's thread. There is none for no elements.
class CpuOperation : public mlx::core::UnaryPrimitive {
 public:
  using mlx::core::UnaryPrimitive::UnaryPrimitive;

  void eval_cpu(const std::vector<mlx::core::array>& in, mlx::core::array& out) override {
    out.set_data(allocate(out.nbytes()));
    if (out.size() == 0) return;
    auto& encoder = mlx::core::cpu::get_command_encoder(stream());
    for (const auto& a : in) encoder.set_input_array(a);
    encoder.set_output_array(out);
    dispatch(encoder, in, out);
  }

  // Never called: they are queued on CPU streams (cpu_stream).
  void eval_gpu(const std::vector<mlx::core::array>&, mlx::core::array&) override {
    throw std::runtime_error("this operation of pamx has no GPU kernel");
  }

 protected:
  // Queues the task. The memory of `in` and `out` is known, and theirs until it has run.
  virtual void dispatch(mlx::core::cpu::CommandEncoder& encoder,
                        const std::vector<mlx::core::array>& in, mlx::core::array& out) = 0;
};

}  // namespace pamx
