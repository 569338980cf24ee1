// mpp::tensor_ops::matmul2d on register operands: a model of what its header documents.
//
// Only 16x32x16 in one simdgroup, which is the shape whose register layout is known: not from
// documentation but from MLX's kernels for M5 (steel/attn/nax.h). Of a 16x16 piece, a lane holds
// row r in elements 0 to 3 and r + 8 in elements 4 to 7, columns c to c + 3; a larger operand is two
// pieces, one after the other. GPUs before M5 lay operands out in another way.
//
// relaxed_precision lets the implementation give accuracy up without saying how much. Here a float
// operand is then rounded to the other operand's 16-bit type: the least that the units could keep.
#pragma once

#include "simd.hpp"
#include "simdgroup_matrix.hpp"
#include "tensor_ops_descriptor.hpp"

namespace softmetal {

// One product's operands, while every lane of the running simdgroup shows its elements.
struct Product {
  float left[16][16];
  float right[16][32];
};
inline Product& product() {
  static Product shared;
  return shared;
}

}  // namespace softmetal

namespace mpp {
namespace tensor_ops {

template <class T, int Rows, int Columns>
struct RegisterOperand {
  typedef T element_type;
  static constexpr int capacity = Rows * Columns / 32;
  T elements[capacity];

  static constexpr ushort get_capacity() { return capacity; }
  static constexpr bool is_valid_element(ushort) { return true; }
  T& operator[](ushort i) { return elements[check(i)]; }
  const T& operator[](ushort i) const { return elements[check(i)]; }

  static int row(int i) {
    const int piece = Columns == 16 ? i / 8 * 16 : 0;
    return piece + int(::softmetal::matrix_row(::softmetal::group.current % 32)) + i / 4 % 2 * 8;
  }
  static int column(int i) {
    const int piece = Columns == 32 ? i / 8 * 16 : 0;
    return piece + 2 * int(::softmetal::matrix_column(::softmetal::group.current % 32)) + i % 4;
  }

 private:
  static ushort check(ushort i) {
    if (i >= capacity) ::softmetal::fail("element %u of %d of a cooperative tensor", i, capacity);
    return i;
  }
};

template <class T, class Other, bool Relaxed>
struct Rounded {
  static float get(T x) { return float(x); }
};
template <class Other>
struct Rounded<float, Other, true> {
  static float get(float x) { return float(Other(x)); }
};

template <uint Bits, class Scope>
class matmul2d {
  typedef Described<Bits> described;
  static_assert(described::is_known_shape, "the model knows 16x32x16 alone");
  static_assert(!described::transpose_left, "the model has no transposed left operand");
  static_assert(metal::is_same<Scope, metal::execution_simdgroup>::value,
                "register operands belong to one simdgroup");

 public:
  template <class L, class R, class D>
  using left_t = RegisterOperand<L, 16, 16>;
  template <class L, class R, class D>
  using right_t = RegisterOperand<R, described::transpose_right ? 32 : 16,
                                  described::transpose_right ? 16 : 32>;

  template <class L, class R, class D>
  left_t<L, R, D> get_left_input_cooperative_tensor() const {
    static_assert(is_listed<L, R>::value && metal::is_same<D, float>::value,
                  "the model has float, half and bfloat operands and a float destination");
    return left_t<L, R, D>();
  }
  template <class L, class R, class D>
  right_t<L, R, D> get_right_input_cooperative_tensor() const {
    return right_t<L, R, D>();
  }
  template <class Left, class Right, class D>
  RegisterOperand<D, 16, 32> get_destination_cooperative_tensor() const {
    return RegisterOperand<D, 16, 32>();
  }

  template <class L, class R, int RightRows, int RightColumns>
  void run(RegisterOperand<L, 16, 16>& left, RegisterOperand<R, RightRows, RightColumns>& right,
           RegisterOperand<float, 16, 32>& sums, SM_SITE) const {
    static_assert((RightRows == 32) == described::transpose_right, "the right operand's shape");
    ::softmetal::Product& all = ::softmetal::product();
    typedef Rounded<L, R, described::relaxed && sizeof(R) == 2> FromLeft;
    typedef Rounded<R, L, described::relaxed && sizeof(L) == 2> FromRight;
    wait(file, line);  // the product before this one has been read
    for (int i = 0; i < left.capacity; ++i) {
      all.left[left.row(i)][left.column(i)] = FromLeft::get(left.elements[i]);
    }
    for (int i = 0; i < right.capacity; ++i) {
      const int k = described::transpose_right ? right.column(i) : right.row(i);
      const int n = described::transpose_right ? right.row(i) : right.column(i);
      all.right[k][n] = FromRight::get(right.elements[i]);
    }
    wait(file, line);
    for (int i = 0; i < sums.capacity; ++i) {
      float sum = described::accumulate ? sums.elements[i] : 0.0f;
      for (int k = 0; k < 16; ++k) sum += all.left[sums.row(i)][k] * all.right[k][sums.column(i)];
      sums.elements[i] = sum;
    }
  }

 private:
  static void wait(const char* file, uint line) {
    ::softmetal::wait(::softmetal::kAtSimdOperation, "matmul2d", file, line);
    if (::softmetal::simdgroup_size() != 32)
      ::softmetal::fail("matmul2d at %s:%u in a simdgroup of %u threads", file, line,
                        ::softmetal::simdgroup_size());
  }
};

}  // namespace tensor_ops
}  // namespace mpp
