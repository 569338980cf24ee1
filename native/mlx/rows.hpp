// MLX arrays as the kernels see them.
#pragma once

#include "cpu/small/small.hpp"
#include "mlx/array.h"

namespace pamx {

inline bool served_dtype(mlx::core::Dtype dtype) {
  return dtype == mlx::core::float32 || dtype == mlx::core::float16 || dtype == mlx::core::bfloat16;
}

inline Dtype cpu_dtype(mlx::core::Dtype dtype) {
  if (dtype == mlx::core::float32) return Dtype::float32;
  if (dtype == mlx::core::float16) return Dtype::float16;
  return Dtype::bfloat16;
}

// Refuses what row_view cannot describe: other dtypes, no axis, too many axes.
void check_rows_of(const mlx::core::array& a, const char* name);

// The array's rows along its last axis, where they lie. Its memory must be known (in eval_cpu).
cpu::RowView row_view(const mlx::core::array& a);

}  // namespace pamx
