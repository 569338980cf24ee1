// What describes a matmul2d, for run mode and check mode alike.
#pragma once

#include "traits.hpp"

namespace metal {

struct execution_simdgroup {};
constexpr constant int dynamic_extent = -1;

}  // namespace metal

namespace mpp {
namespace tensor_ops {

// A template argument of matmul2d. Metal's compiler takes the class itself there, which C++ does
// from C++20 on; here it goes through its bits.
class matmul2d_descriptor {
 public:
  enum class mode { multiply, multiply_accumulate };

  constexpr matmul2d_descriptor(int m, int n, int k = ::metal::dynamic_extent,
                                bool transpose_left = false, bool transpose_right = false,
                                bool relaxed_precision = false, mode matmul_mode = mode::multiply)
      : bits_(uint(m & 255) | uint(n & 255) << 8 | uint(k & 255) << 16 | uint(transpose_left) << 24 |
              uint(transpose_right) << 25 | uint(relaxed_precision) << 26 |
              uint(matmul_mode == mode::multiply_accumulate) << 27) {}
  constexpr operator uint() const { return bits_; }

 private:
  uint bits_;
};

template <uint Bits>
struct Described {
  static constexpr bool is_known_shape = (Bits & 0xffffff) == (16 | 32 << 8 | 16 << 16);
  static constexpr bool transpose_left = Bits >> 24 & 1;
  static constexpr bool transpose_right = Bits >> 25 & 1;
  static constexpr bool relaxed = Bits >> 26 & 1;
  static constexpr bool accumulate = Bits >> 27 & 1;
};

// MPPTensorOpsMatMul2d.h lists every combination of float, half and bfloat for a float destination.
template <class Left, class Right>
struct is_listed {
  static constexpr bool value = ::metal::is_floating_point<Left>::value &&
                                ::metal::is_floating_point<Right>::value;
};

}  // namespace tensor_ops
}  // namespace mpp
