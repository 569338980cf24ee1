// metal_simdgroup_matrix over a warp, in the order of elements of its matrix operations: lane l
// holds row l / 4 and two columns from l % 4 * 2. (Metal leaves the order open; PAMX_WARP_FRAGMENTS
// tells the shaders.)
//
// Products with a 16-bit right matrix take half of a tensor core's 16x8x8, sums being float's;
// other products are taken from shuffles, which is right and slow.
#pragma once

namespace metal {

template <class T>
T simd_shuffle(T x, ushort lane);

inline uint sm_lane() {
  return (threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z)) % 32;
}
inline uint sm_row(uint lane) { return lane / 4; }
inline uint sm_column(uint lane) { return lane % 4 * 2; }
inline uint sm_holder(uint row, uint column) { return row * 4 + column / 2; }

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

// Of the right matrix a tensor core wants the transposed one's elements.
template <class T>
inline uint sm_transposed(vec<T, 2> b) {
  uint words;
  asm("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(words) : "r"(as_type<uint>(b)));
  return words;
}

// The unit's rows 8 to 15 are nobody's, and what it adds to is 0: a sum of its own would take four
// registers of a lane for every two that are wanted.
#define SM_PRODUCT(T, name)                                                               \
  template <>                                                                             \
  struct sm_product<float, T, T, float> {                                                 \
    static void apply(vec<float, 2>& d, vec<T, 2> a, vec<T, 2> b, vec<float, 2> c) {      \
      vec<float, 2> upper, lower;                                                         \
      asm volatile("mma.sync.aligned.m16n8k8.row.col.f32." name "." name                  \
                   ".f32 {%0, %1, %2, %3}, {%4, %5}, {%6}, {%7, %7, %7, %7};"             \
                   : "=f"(upper.v[0]), "=f"(upper.v[1]), "=f"(lower.v[0]), "=f"(lower.v[1]) \
                   : "r"(as_type<uint>(a)), "r"(0u), "r"(sm_transposed(b)), "f"(0.0f));   \
      d = c + upper;                                                                      \
    }                                                                                     \
  };
SM_PRODUCT(half, "f16")
SM_PRODUCT(bfloat, "bf16")
#undef SM_PRODUCT

// What tf32, which keeps 11 bits of a number, keeps of it.
inline float sm_tf32(float x) {
  uint kept;
  asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(kept) : "f"(x));
  return __uint_as_float(kept);
}

// Float times 16 bits. The right elements are exact in tf32, the left ones in two parts but for
// their last two bits: the parts take the unit's upper and lower rows. The unit has rows l % 4 and
// l % 4 + 4 of the right matrix where rows l % 4 * 2 and the next are at hand: with the left's
// columns in the same places, the sum is the same.
#define SM_PRODUCT(T)                                                                       \
  template <>                                                                               \
  struct sm_product<float, float, T, float> {                                               \
    static void apply(vec<float, 2>& d, vec<float, 2> a, vec<T, 2> b, vec<float, 2> c) {    \
      const vec<T, 2> right = as_type<vec<T, 2>>(sm_transposed(b));                         \
      const float high[2] = {sm_tf32(a.v[0]), sm_tf32(a.v[1])};                             \
      const float low[2] = {sm_tf32(a.v[0] - high[0]), sm_tf32(a.v[1] - high[1])};          \
      vec<float, 2> upper, lower;                                                           \
      asm volatile(                                                                         \
          "mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 "                             \
          "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%10, %10, %10, %10};"             \
          : "=f"(upper.v[0]), "=f"(upper.v[1]), "=f"(lower.v[0]), "=f"(lower.v[1])          \
          : "r"(__float_as_uint(high[0])), "r"(__float_as_uint(low[0])),                    \
            "r"(__float_as_uint(high[1])), "r"(__float_as_uint(low[1])),                    \
            "r"(__float_as_uint(float(right.v[0]))), "r"(__float_as_uint(float(right.v[1]))), \
            "f"(0.0f));                                                                     \
      d = c + (upper + lower);                                                              \
    }                                                                                       \
  };
SM_PRODUCT(half)
SM_PRODUCT(bfloat)
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
