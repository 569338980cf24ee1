// Checks that every operation on block pools makes.
#include "mlx/pool.hpp"

#include <sstream>

#include "mlx/device.h"
#include "mlx/gpu.hpp"
#include "mlx/stream.h"
#include "mlx/utils.h"

namespace pamx {

namespace mx = mlx::core;

void check_pool(const mx::array& pool, const char* name) {
  require(pool.ndim() == 4 && pool.size() > 0, [&] {
    return std::string(name) + " has shape " + shape_string(pool.shape()) +
           " instead of [num_blocks, block_size, kv_heads, dim]";
  });
  // An array that is scheduled has its memory and layout, also before its values are there.
  if (pool.status() != mx::array::Status::unscheduled) {
    require(pool.flags().row_contiguous,
            [&] { return std::string(name) + " is not row-contiguous"; });
  } else {
    require(pool.has_primitive() && dynamic_cast<PoolPrimitive*>(&pool.primitive()) != nullptr,
            [&] {
              return std::string(name) +
                     " is not evaluated: pass an evaluated array, or the pool that the last call "
                     "returned";
            });
  }
}

mx::Stream served_stream() {
  const auto stream = mx::default_stream(mx::default_device());
  gpu::check_stream(stream);
  return stream;
}

mx::Stream cpu_stream() {
  const auto stream = mx::default_stream(mx::default_device());
  if (stream.device != mx::Device::cpu) {
    throw Error(PAMX_UNSUPPORTED,
                "MLX's default device is the GPU, and this runs on the CPU alone");
  }
  return stream;
}

std::string shape_string(const mx::Shape& shape) {
  std::string text = "[";
  for (size_t i = 0; i < shape.size(); ++i) {
    text += (i ? ", " : "") + std::to_string(shape[i]);
  }
  return text + "]";
}

std::string dtype_string(mx::Dtype dtype) {
  std::ostringstream text;
  text << dtype;
  return text.str();
}

}  // namespace pamx
