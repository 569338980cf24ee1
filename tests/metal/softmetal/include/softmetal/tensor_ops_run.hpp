// matmul2d on cooperative tensors, computed: see tensor_ops.hpp for what it is a model of.
#pragma once
#pragma clang system_header

#include "simd.hpp"
#include "tensor_ops.hpp"

namespace softmetal {

// Of a 16x16 fragment, lane L holds the rows r and r + 8 and the columns c to c + 3.
inline uint fragment_row(uint lane, uint i) { return lane / 16 * 4 + lane / 2 % 4 + i / 4 * 8; }
inline uint fragment_column(uint lane, uint i) { return (lane / 8 % 2 * 2 + lane % 2) * 4 + i % 4; }
inline uint fragment_lane(uint row, uint column) {
  return row % 8 / 4 * 16 + column / 8 * 8 + row % 4 * 2 + column / 4 % 2;
}
inline uint fragment_element(uint row, uint column) { return row / 8 * 4 + column % 4; }

}  // namespace softmetal

namespace mpp {
namespace tensor_ops {

// One lane's share of a Rows x Columns matrix, as it is stored.
template <class T, int Rows, int Columns>
struct sm_cooperative_tensor {
  static_assert(Rows % 16 == 0 && Columns % 16 == 0, "the model has fragments of 16x16");
  static constexpr int capacity = Rows * Columns / 32;
  typedef T element_type;
  T sm_elements[capacity];

  sm_cooperative_tensor() {
    for (int i = 0; i < capacity; ++i) sm_elements[i] = softmetal::undefined<T>();
  }
  T& operator[](uint i) {
    sm_check(i);
    return sm_elements[i];
  }
  const T& operator[](uint i) const {
    sm_check(i);
    return sm_elements[i];
  }
  constexpr ushort get_capacity() const { return capacity; }
  constexpr bool get_mask(ushort) const { return true; }
  constexpr bool is_valid_element(ushort) const { return true; }
  // {column, row} of this lane's i-th element.
  metal::vec<ushort, 2> get_multidimensional_index(ushort i) const {
    const uint lane = softmetal::group.current % 32, fragment = i / 8;
    return metal::vec<ushort, 2>(
        ushort(fragment % (Columns / 16) * 16 + softmetal::fragment_column(lane, i % 8)),
        ushort(fragment / (Columns / 16) * 16 + softmetal::fragment_row(lane, i % 8)));
  }
  static void sm_check(uint i) {
    if (i >= uint(capacity))
      softmetal::fail("element %u of a cooperative tensor that has %d", i, capacity);
  }
};

template <ulong Descriptor, class Scope>
struct matmul2d {
  static_assert(metal::is_same<Scope, metal::execution_simdgroup>::value,
                "the model runs a matmul2d of one simdgroup");
  static constexpr int m = int(Descriptor >> 48), n = int(Descriptor >> 32 & 0xffff);
  static constexpr int k = int(Descriptor >> 16 & 0xffff);
  static constexpr bool transpose_left = Descriptor & 4, transpose_right = Descriptor & 2;
  static constexpr bool accumulate = Descriptor & 1;

  template <class A>
  using Left = sm_cooperative_tensor<A, transpose_left ? k : m, transpose_left ? m : k>;
  template <class B>
  using Right = sm_cooperative_tensor<B, transpose_right ? n : k, transpose_right ? k : n>;
  template <class C>
  using Destination = sm_cooperative_tensor<C, m, n>;

  template <class A, class B, class C>
  Left<A> get_left_input_cooperative_tensor() const {
    return Left<A>();
  }
  template <class A, class B, class C>
  Right<B> get_right_input_cooperative_tensor() const {
    return Right<B>();
  }
  template <class LeftTensor, class RightTensor, class C>
  Destination<C> get_destination_cooperative_tensor() const {
    return Destination<C>();
  }

  // Sums in float (int for int8), added to C at the end.
  template <class A, class B, class C>
  void run(const Left<A>& a, const Right<B>& b, Destination<C>& c, SM_SITE) const {
    typedef metal::conditional_t<metal::is_integral<C>::value, int, float> Sum;
    struct Operands {
      const Left<A>* a;
      const Right<B>* b;
    };
    // The tensors stay where they are, on the fibres' stacks, until every lane has read them.
    const auto seen = softmetal::exchange(Operands{&a, &b}, "matmul2d", file, line);
    if (seen.lanes != 32)
      softmetal::fail("matmul2d at %s:%u in a simdgroup of %u threads", file, line, seen.lanes);
    Sum sums[Destination<C>::capacity];
    for (int i = 0; i < Destination<C>::capacity; ++i) {
      const auto at = c.get_multidimensional_index(ushort(i));
      Sum sum = 0;
      for (uint inner = 0; inner < uint(k); ++inner)
        sum += Sum(element<A, transpose_left ? m : k>(seen, &Operands::a, transpose_left, at[1],
                                                      inner)) *
               Sum(element<B, transpose_right ? k : n>(seen, &Operands::b, transpose_right, inner,
                                                       at[0]));
      sums[i] = sum;
    }
    softmetal::wait(softmetal::kAtSimdOperation, "matmul2d", file, line);
    for (int i = 0; i < Destination<C>::capacity; ++i)
      c.sm_elements[i] = C(accumulate ? Sum(c.sm_elements[i]) + sums[i] : sums[i]);
  }

 private:
  template <class T, int Columns, class S, class O, class Tensor>
  static T element(const S& seen, const Tensor* O::* operand, bool transposed, uint row,
                   uint column) {
    const uint r = transposed ? column : row, c = transposed ? row : column;
    const O owner = seen.at(softmetal::fragment_lane(r % 16, c % 16));
    const uint fragment = r / 16 * (Columns / 16) + c / 16;
    return (owner.*operand)
        ->sm_elements[fragment * 8 + softmetal::fragment_element(r % 16, c % 16)];
  }
};

}  // namespace tensor_ops
}  // namespace mpp
