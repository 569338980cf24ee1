// matmul2d on cooperative tensors, computed: see tensor_ops.hpp for what it is a model of.
//
// Fibres run it (tensor_ops_run.hpp), and a warp (bench/metal_cuda). Whoever includes it has said
// what these are, in namespace softmetal: lane(), undefined<T>(), matrix_row(lane) and
// matrix_column(lane) of an 8x8 matrix, out_of_range(i, capacity), meet_at_product(file, line),
// where all lanes wait for each other, and simdgroup_memory<T>(), one T for all of them.
#pragma once

#include "tensor_ops.hpp"

namespace softmetal {

// Of a 16x16 fragment, lane L holds the rows r and r + 8 and the columns c to c + 3, where an 8x8
// matrix has row r and the columns c / 2 and c / 2 + 1.
inline uint fragment_row(uint lane, uint i) { return matrix_row(lane) + i / 4 * 8; }
inline uint fragment_column(uint lane, uint i) { return 2 * matrix_column(lane) + i % 4; }

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
    const uint lane = softmetal::lane(), fragment = i / 8;
    return metal::vec<ushort, 2>(
        ushort(fragment % (Columns / 16) * 16 + softmetal::fragment_column(lane, i % 8)),
        ushort(fragment / (Columns / 16) * 16 + softmetal::fragment_row(lane, i % 8)));
  }
  static void sm_check(uint i) {
    if (i >= uint(capacity)) softmetal::out_of_range(i, capacity);
  }
};

// An operand as the units see it.
template <class Sum, class T, class Other, bool Relaxed>
inline Sum sm_seen(T x) {
  constexpr bool rounds = Relaxed && metal::is_same<T, float>::value && sizeof(Other) == 2;
  return Sum(metal::conditional_t<rounds, Other, T>(x));
}

template <ulong Descriptor, class Scope>
struct matmul2d {
  static_assert(metal::is_same<Scope, metal::execution_simdgroup>::value,
                "the model runs a matmul2d of one simdgroup");
  static constexpr int m = int(Descriptor >> 48), n = int(Descriptor >> 32 & 0xffff);
  static constexpr int k = int(Descriptor >> 16 & 0xffff);
  static constexpr bool relaxed = Descriptor & 8, accumulate = Descriptor & 1;
  static constexpr bool transpose_left = Descriptor & 4, transpose_right = Descriptor & 2;

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

  // Sums in float, or in int for integers.
  template <class A, class B, class C>
  void run(const Left<A>& a, const Right<B>& b, Destination<C>& c, SM_SITE) const {
    typedef metal::conditional_t<metal::is_integral<C>::value, int, float> Sum;
    Operands<Sum>& shared = softmetal::simdgroup_memory<Operands<Sum>>();
    softmetal::meet_at_product(file, line);  // every lane has read the product before this one
    for (int i = 0; i < Left<A>::capacity; ++i) {
      const auto at = a.get_multidimensional_index(ushort(i));
      (transpose_left ? shared.left[at[0]][at[1]] : shared.left[at[1]][at[0]]) =
          sm_seen<Sum, A, B, relaxed>(a.sm_elements[i]);
    }
    for (int i = 0; i < Right<B>::capacity; ++i) {
      const auto at = b.get_multidimensional_index(ushort(i));
      (transpose_right ? shared.right[at[0]][at[1]] : shared.right[at[1]][at[0]]) =
          sm_seen<Sum, B, A, relaxed>(b.sm_elements[i]);
    }
    softmetal::meet_at_product(file, line);
    for (int i = 0; i < Destination<C>::capacity; ++i) {
      const auto at = c.get_multidimensional_index(ushort(i));
      Sum sum = accumulate ? Sum(c.sm_elements[i]) : Sum(0);
      for (int inner = 0; inner < k; ++inner)
        sum += shared.left[at[1]][inner] * shared.right[inner][at[0]];
      c.sm_elements[i] = C(sum);
    }
  }

 private:
  template <class Sum>
  struct Operands {
    Sum left[m][k], right[k][n];
  };
};

}  // namespace tensor_ops
}  // namespace mpp
