// metal_simdgroup_matrix: 8x8 matrices whose 64 elements lie in the lanes of a simdgroup, two each.
//
// Lane L holds row (L / 16) * 4 + (L / 2) % 4 and the columns c, c + 1 with
// c = ((L / 8) % 2) * 4 + (L % 2) * 2: Apple documents no layout, this is the one that MLX's
// kernels rely on (steel/gemm/mma.h, get_coord).
#pragma once

#include "simd.hpp"

namespace softmetal {

inline uint matrix_row(uint lane) { return lane / 16 * 4 + lane / 2 % 4; }
inline uint matrix_column(uint lane) { return lane / 8 % 2 * 4 + lane % 2 * 2; }
// The lane that holds an element; it is the lane's element column % 2.
inline uint matrix_lane(uint row, uint column) {
  return row / 4 * 16 + column / 4 * 8 + row % 4 * 2 + column % 4 / 2;
}

}  // namespace softmetal

namespace metal {

template <class T, int Columns, int Rows = Columns>
struct simdgroup_matrix {
  static_assert(Columns == 8 && Rows == 8, "a simdgroup_matrix is 8x8");
  static_assert(is_floating_point<T>::value, "a simdgroup_matrix is of float, half or bfloat");
  typedef vec<T, 2> storage_type;
  storage_type sm_elements;

  simdgroup_matrix() {}
  // A diagonal matrix.
  explicit simdgroup_matrix(T value) {
    const uint lane = ::softmetal::group.current % 32;
    for (uint i = 0; i < 2; ++i)
      sm_elements.v[i] =
          ::softmetal::matrix_row(lane) == ::softmetal::matrix_column(lane) + i ? value : T(0);
  }
  storage_type& thread_elements() { return sm_elements; }
  const storage_type& thread_elements() const { return sm_elements; }
};

typedef simdgroup_matrix<float, 8, 8> simdgroup_float8x8;
typedef simdgroup_matrix<half, 8, 8> simdgroup_half8x8;
typedef simdgroup_matrix<bfloat, 8, 8> simdgroup_bfloat8x8;

template <class T, int Columns, int Rows = Columns>
inline simdgroup_matrix<T, Columns, Rows> make_filled_simdgroup_matrix(T value) {
  simdgroup_matrix<T, Columns, Rows> m;
  m.sm_elements = vec<T, 2>(value);
  return m;
}

// An operation of the whole simdgroup, so lanes that come here apart are an error.
#define SM_TOGETHER(name)                                                           \
  ::softmetal::wait(::softmetal::kAtSimdOperation, name, file, line);               \
  if (::softmetal::simdgroup_size() != 32)                                          \
    ::softmetal::fail("%s at %s:%u in a simdgroup of %u threads", name, file, line, \
                      ::softmetal::simdgroup_size());                               \
  const uint lane = ::softmetal::group.current % 32;                                \
  const uint row = ::softmetal::matrix_row(lane), column = ::softmetal::matrix_column(lane)

// Element (r, c) is source[(origin.y + r) * elements_per_row + origin.x + c], transposed the other
// way around.
template <class T>
inline void simdgroup_load(simdgroup_matrix<T, 8, 8>& d, const T* source,
                           ulong elements_per_row = 8, ulong2 origin = ulong2(0),
                           bool transpose_matrix = false, SM_SITE) {
  SM_TOGETHER("simdgroup_load");
  for (uint i = 0; i < 2; ++i) {
    const ulong r = transpose_matrix ? column + i : row, c = transpose_matrix ? row : column + i;
    d.sm_elements.v[i] = source[(origin.v[1] + r) * elements_per_row + origin.v[0] + c];
  }
}
template <class T>
inline void simdgroup_store(const simdgroup_matrix<T, 8, 8>& a, T* destination,
                            ulong elements_per_row = 8, ulong2 origin = ulong2(0),
                            bool transpose_matrix = false, SM_SITE) {
  SM_TOGETHER("simdgroup_store");
  for (uint i = 0; i < 2; ++i) {
    const ulong r = transpose_matrix ? column + i : row, c = transpose_matrix ? row : column + i;
    destination[(origin.v[1] + r) * elements_per_row + origin.v[0] + c] = a.sm_elements.v[i];
  }
}

// Products and sums in float, rounded once to the type of the destination.
template <class D, class A, class B, class C>
inline void simdgroup_multiply_accumulate(simdgroup_matrix<D, 8, 8>& d,
                                          const simdgroup_matrix<A, 8, 8>& a,
                                          const simdgroup_matrix<B, 8, 8>& b,
                                          const simdgroup_matrix<C, 8, 8>& c, SM_SITE) {
  const float4 mine(float(a.sm_elements.v[0]), float(a.sm_elements.v[1]), float(b.sm_elements.v[0]),
                    float(b.sm_elements.v[1]));
  const auto seen = ::softmetal::exchange(mine, "simdgroup_multiply_accumulate", file, line);
  SM_TOGETHER("simdgroup_multiply_accumulate");
  float sum[2] = {float(c.sm_elements.v[0]), float(c.sm_elements.v[1])};
  for (uint k = 0; k < 8; ++k) {
    const float left = seen.at(::softmetal::matrix_lane(row, k)).v[k % 2];
    const float4 right = seen.at(::softmetal::matrix_lane(k, column));
    sum[0] += left * right.v[2];
    sum[1] += left * right.v[3];
  }
  d.sm_elements = vec<D, 2>(D(sum[0]), D(sum[1]));
}
template <class D, class A, class B>
inline void simdgroup_multiply(simdgroup_matrix<D, 8, 8>& d, const simdgroup_matrix<A, 8, 8>& a,
                               const simdgroup_matrix<B, 8, 8>& b, SM_SITE) {
  simdgroup_multiply_accumulate(d, a, b, make_filled_simdgroup_matrix<float, 8, 8>(0.0f), file,
                                line);
}
template <class T>
inline simdgroup_matrix<T, 8, 8> operator*(const simdgroup_matrix<T, 8, 8>& a,
                                           const simdgroup_matrix<T, 8, 8>& b) {
  simdgroup_matrix<T, 8, 8> d;
  simdgroup_multiply(d, a, b);
  return d;
}

#undef SM_TOGETHER

}  // namespace metal
