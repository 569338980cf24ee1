// matmul2d on cooperative tensors over a warp: the software Metal's model of the documented
// operation (softmetal/tensor_ops_model.hpp), not a use of the tensor cores. Answers are checked
// with it; its speed says nothing.
#pragma once

#define SM_SITE int file = 0, int line = 0

namespace softmetal {

constexpr int kProductSimdgroups = 4;  // of a threadgroup; the products' memory is static

inline uint lane() { return metal::sm_lane(); }
inline uint matrix_row(uint lane) { return metal::sm_row(lane); }
inline uint matrix_column(uint lane) { return metal::sm_column(lane); }
inline void meet_at_product(int, int) { __syncwarp(); }
inline void out_of_range(uint, int) { __trap(); }

// NaN, as tests/metal poisons memory; any number will do for an integer.
template <class T>
inline T undefined() {
  return T(__int_as_float(0x7fffffff));
}

template <class T>
inline T& simdgroup_memory() {
  __shared__ __align__(16) char memory[kProductSimdgroups * sizeof(T)];
  const uint simdgroup = position<simdgroup_index_in_threadgroup>(0);
  if (simdgroup >= kProductSimdgroups) __trap();
  return ((T*)memory)[simdgroup];
}

}  // namespace softmetal

#include "softmetal/tensor_ops_model.hpp"
