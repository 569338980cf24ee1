// metal_simdgroup_matrix over a warp, with the software Metal's order of elements: lane l holds row
// (l / 16) * 4 + (l / 2) % 4 and two columns from ((l / 8) % 2) * 4 + (l % 2) * 2.
//
// Sums are float's. Products of 16-bit matrices take half of a tensor core's m16n8k8, whose own order
// of elements costs shuffles before and behind it; other products are taken from shuffles alone. The
// answers are right; the speed is no measure of what matrix units can do.
#pragma once

namespace metal {

template <class T>
T simd_shuffle(T x, ushort lane);

inline uint sm_lane() {
  return (threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z)) % 32;
}
inline uint sm_row(uint lane) { return lane / 16 * 4 + lane / 2 % 4; }
inline uint sm_column(uint lane) { return lane / 8 % 2 * 4 + lane % 2 * 2; }
inline uint sm_holder(uint row, uint column) {
  return row / 4 * 16 + column / 4 * 8 + row % 4 * 2 + column % 4 / 2;
}

template <class T, int Columns, int Rows = Columns>
struct simdgroup_matrix {
  typedef vec<T, 2> storage_type;
  storage_type sm_elements;
  simdgroup_matrix() {}
  explicit simdgroup_matrix(T value) {
    for (uint i = 0; i < 2; ++i)
      sm_elements.v[i] = sm_row(sm_lane()) == sm_column(sm_lane()) + i ? value : T(0);
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

template <class T>
inline void simdgroup_load(simdgroup_matrix<T, 8, 8>& d, const T* source,
                           ulong elements_per_row = 8, ulong2 origin = ulong2(0),
                           bool transpose_matrix = false) {
  const uint row = sm_row(sm_lane()), column = sm_column(sm_lane());
  for (uint i = 0; i < 2; ++i) {
    const ulong r = transpose_matrix ? column + i : row, c = transpose_matrix ? row : column + i;
    d.sm_elements.v[i] = source[(origin.v[1] + r) * elements_per_row + origin.v[0] + c];
  }
}

template <class T>
inline void simdgroup_store(const simdgroup_matrix<T, 8, 8>& a, T* destination,
                            ulong elements_per_row = 8, ulong2 origin = ulong2(0),
                            bool transpose_matrix = false) {
  const uint row = sm_row(sm_lane()), column = sm_column(sm_lane());
  for (uint i = 0; i < 2; ++i) {
    const ulong r = transpose_matrix ? column + i : row, c = transpose_matrix ? row : column + i;
    destination[(origin.v[1] + r) * elements_per_row + origin.v[0] + c] = a.sm_elements.v[i];
  }
}

template <class D, class A, class B, class C>
struct sm_product {
  static void apply(vec<D, 2>& d, vec<A, 2> a, vec<B, 2> b, vec<C, 2> c) {
    const uint row = sm_row(sm_lane()), column = sm_column(sm_lane());
    float sum[2] = {float(c.v[0]), float(c.v[1])};
    for (uint k = 0; k < 8; ++k) {
      const vec<A, 2> left = simd_shuffle(a, ushort(sm_holder(row, k)));
      const vec<B, 2> right = simd_shuffle(b, ushort(sm_holder(k, column)));
      sum[0] += float(left.v[k % 2]) * float(right.v[0]);
      sum[1] += float(left.v[k % 2]) * float(right.v[1]);
    }
    d = vec<D, 2>(D(sum[0]), D(sum[1]));
  }
};

// The tensor core's order: lane l holds row l / 4 and two columns from l % 4 * 2; of the right matrix
// it wants the same of the transposed one.
#define SM_PRODUCT(T, name)                                                                  \
  template <>                                                                                \
  struct sm_product<float, T, T, float> {                                                    \
    static void apply(vec<float, 2>& d, vec<T, 2> a, vec<T, 2> b, vec<float, 2> c) {         \
      const uint lane = sm_lane();                                                           \
      const ushort from = sm_holder(lane / 4, lane % 4 * 2);                                 \
      const uint left = as_type<uint>(simd_shuffle(a, from));                                \
      const uint rows = as_type<uint>(simd_shuffle(b, from));                                \
      uint right;                                                                            \
      asm volatile("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(right) : "r"(rows)); \
      vec<float, 2> sum = simd_shuffle(c, from);                                             \
      float lower[2];                                                                        \
      asm volatile("mma.sync.aligned.m16n8k8.row.col.f32." name "." name                     \
                   ".f32 {%0, %1, %2, %3}, {%4, %5}, {%6}, {%7, %8, %9, %9};"                \
                   : "=f"(sum.v[0]), "=f"(sum.v[1]), "=f"(lower[0]), "=f"(lower[1])          \
                   : "r"(left), "r"(0u), "r"(right), "f"(sum.v[0]), "f"(sum.v[1]), "f"(0.0f)); \
      d = simd_shuffle(sum, ushort(sm_row(lane) * 4 + sm_column(lane) / 2));                 \
    }                                                                                        \
  };
SM_PRODUCT(half, "f16")
SM_PRODUCT(bfloat, "bf16")
#undef SM_PRODUCT

template <class D, class A, class B, class C>
inline void simdgroup_multiply_accumulate(simdgroup_matrix<D, 8, 8>& d,
                                          const simdgroup_matrix<A, 8, 8>& a,
                                          const simdgroup_matrix<B, 8, 8>& b,
                                          const simdgroup_matrix<C, 8, 8>& c) {
  sm_product<D, A, B, C>::apply(d.sm_elements, a.sm_elements, b.sm_elements, c.sm_elements);
}

template <class D, class A, class B>
inline void simdgroup_multiply(simdgroup_matrix<D, 8, 8>& d, const simdgroup_matrix<A, 8, 8>& a,
                               const simdgroup_matrix<B, 8, 8>& b) {
  simdgroup_multiply_accumulate(d, a, b, make_filled_simdgroup_matrix<float, 8, 8>(0.0f));
}

}  // namespace metal
