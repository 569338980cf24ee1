// Metal 4's tensor operations, what run mode and check mode have in common.
//
// A model of Apple's documentation (the comments of MPPTensorOpsMatMul2d.h), not of hardware: the
// documentation leaves open how the elements of a cooperative tensor lie in the lanes. Here they
// lie as MLX's kernels for M5 (steel/gemm/nax.h) rely on: 16x16 fragments, row after row of the
// matrix as it is stored, eight elements of each to a lane.
//
// relaxed_precision lets the implementation give accuracy up without saying how much. Here a float
// operand is then rounded to the other operand's 16-bit type: the least that the units could keep.
#pragma once

#include "traits.hpp"

namespace metal {

struct execution_thread {};
struct execution_simdgroup {};
template <int N>
struct execution_simdgroups {};

constexpr constant int dynamic_extent = -1;

// A value that all threads share. The model does not check that they do.
template <class T>
struct uniform {
  T sm_value;
  uniform(T value) : sm_value(value) {}
  operator T() const { return sm_value; }
};
template <class T>
inline uniform<T> make_uniform(T value) {
  return uniform<T>(value);
}

}  // namespace metal

namespace mpp {
namespace tensor_ops {

// C = A B or C += A B, with A of m x k and B of k x n; `transpose` says that an operand is stored
// the other way around.
struct matmul2d_descriptor {
  enum class mode { multiply, multiply_accumulate };

  int m, n, k;
  bool transpose_left, transpose_right, relaxed_precision;
  mode matmul_mode;

  constexpr matmul2d_descriptor(int m_, int n_, int k_ = metal::dynamic_extent,
                                bool transpose_left_ = false, bool transpose_right_ = false,
                                bool relaxed_precision_ = false, mode mode_ = mode::multiply)
      : m(m_),
        n(n_),
        k(k_),
        transpose_left(transpose_left_),
        transpose_right(transpose_right_),
        relaxed_precision(relaxed_precision_),
        matmul_mode(mode_) {}

  // A template argument of C++17 cannot be a struct.
  constexpr operator ulong() const {
    return ulong(m) << 48 | ulong(n) << 32 | ulong(ushort(k)) << 16 |
           ulong(relaxed_precision) << 3 | ulong(transpose_left) << 2 |
           ulong(transpose_right) << 1 | ulong(matmul_mode == mode::multiply_accumulate);
  }
};

}  // namespace tensor_ops
}  // namespace mpp
