// Declarations of mpp::tensor_ops::matmul2d with Metal's address spaces.
#pragma once

#include "tensor_ops_descriptor.hpp"

namespace mpp {
namespace tensor_ops {

template <class T, int Rows, int Columns>
struct RegisterOperand {
  T elements[Rows * Columns / 32];
  static constexpr ushort get_capacity() { return Rows * Columns / 32; }
  static constexpr bool is_valid_element(ushort) { return true; }
  thread T& operator[](ushort) thread;
  const thread T& operator[](ushort) const thread;
};

template <uint Bits, class Scope>
class matmul2d {
 public:
  template <class L, class R, class D>
  RegisterOperand<L, 16, 16> get_left_input_cooperative_tensor() thread const;
  template <class L, class R, class D>
  RegisterOperand<R, Described<Bits>::transpose_right ? 32 : 16,
                  Described<Bits>::transpose_right ? 16 : 32>
  get_right_input_cooperative_tensor() thread const;
  template <class Left, class Right, class D>
  RegisterOperand<D, 16, 32> get_destination_cooperative_tensor() thread const;
  template <class Left, class Right, class Sums>
  void run(thread Left& left, thread Right& right, thread Sums& sums) thread const;
};

}  // namespace tensor_ops
}  // namespace mpp
