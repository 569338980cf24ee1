// matmul2d on cooperative tensors, declared: tensor_ops.hpp.
#pragma once
#pragma clang system_header

#include "tensor_ops.hpp"

namespace mpp {
namespace tensor_ops {

template <class T>
struct sm_cooperative_tensor {
  typedef T element_type;
  T sm_elements[64];
  sm_cooperative_tensor() {}
  thread T& operator[](uint) thread;
  const thread T& operator[](uint) const thread;
  constexpr ushort get_capacity() const thread { return 64; }
  bool get_mask(ushort) const thread;
  bool is_valid_element(ushort) const thread;
  ushort2 get_multidimensional_index(ushort) const thread;
};

template <ulong Descriptor, class Scope>
struct matmul2d {
  template <class A, class B, class C>
  sm_cooperative_tensor<A> get_left_input_cooperative_tensor() const thread;
  template <class A, class B, class C>
  sm_cooperative_tensor<B> get_right_input_cooperative_tensor() const thread;
  template <class Left, class Right, class C>
  sm_cooperative_tensor<C> get_destination_cooperative_tensor() const thread;
  template <class A, class B, class C>
  void run(thread const sm_cooperative_tensor<A>&, thread const sm_cooperative_tensor<B>&,
           thread sm_cooperative_tensor<C>&) const thread;
};

}  // namespace tensor_ops
}  // namespace mpp
