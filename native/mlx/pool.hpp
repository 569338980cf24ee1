// What the operations on block pools have in common: they change a pool in place and hand it on.
#pragma once

#include <string>

#include "core/status.hpp"
#include "mlx/array.h"
#include "mlx/primitives.h"

namespace pamx {

// Each pool output shares its input's buffer. MLX's own donation test is false for a primitive
// with several outputs, and every step would copy the whole pool; so our operations always share,
// and the caller uses the newest pool alone. They accept pools that exist and pools that another
// of them will hand on: nothing else is known to be a whole buffer that may be written.
class PoolPrimitive : public mlx::core::Primitive {
 public:
  using mlx::core::Primitive::Primitive;

  void eval_gpu(const std::vector<mlx::core::array>&, std::vector<mlx::core::array>&) override {
    throw std::runtime_error("this operation of pamx has no GPU kernel");
  }

 protected:
  static void hand_on(const mlx::core::array& pool, mlx::core::array& out) {
    if (!pool.flags().row_contiguous) throw std::runtime_error("a block pool became strided");
    out.copy_shared_buffer(pool);
  }
};

// Refuses what is not [num_blocks, block_size, kv_heads, dim] in one contiguous buffer.
void check_pool(const mlx::core::array& pool, const char* name);

// MLX's default stream; refuses one on a GPU that this build has no kernels for.
mlx::core::Stream served_stream();
// The same; refuses any GPU.
mlx::core::Stream cpu_stream();

std::string shape_string(const mlx::core::Shape& shape);
std::string dtype_string(mlx::core::Dtype dtype);

}  // namespace pamx
