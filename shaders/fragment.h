// The 8x8 fragments of simdgroup_matrix, by element: who holds what, and sums along rows.
//
// Lane l holds two elements: row fragment_row(l), columns fragment_column(l) and the one after.
// The Metal shading language leaves this order open; it has been the same on every Apple GPU, and
// MLX's matrix kernels (mlx/backend/metal/kernels/steel) build on it too.
#pragma once

#include <metal_simdgroup>
#include <metal_simdgroup_matrix>
#include <metal_stdlib>

namespace pamx {

using namespace metal;

template <typename T>
using Fragment = simdgroup_matrix<T, 8, 8>;

inline ushort fragment_row(ushort lane) { return ((lane >> 2) & 4) | ((lane >> 1) & 3); }

inline ushort fragment_column(ushort lane) { return ((lane >> 1) & 4) | ((lane & 1) << 1); }

// Of a row of a fragment, from the two values of each lane merged into one.
inline float row_max(float value) {
  value = max(value, simd_shuffle_xor(value, ushort(1)));
  return max(value, simd_shuffle_xor(value, ushort(8)));
}

inline float row_sum(float value) {
  value += simd_shuffle_xor(value, ushort(1));
  return value + simd_shuffle_xor(value, ushort(8));
}

template <typename T>
inline void fill(thread Fragment<T>& of, T value) {
  of.thread_elements()[0] = value;
  of.thread_elements()[1] = value;
}

template <typename T>
inline void scale(thread Fragment<T>& of, T factor) {
  of.thread_elements()[0] *= factor;
  of.thread_elements()[1] *= factor;
}

// This lane's two elements, neighbours in memory, of type P there.
template <typename T, typename P>
inline void set(thread Fragment<T>& of, vec<P, 2> elements) {
  of.thread_elements()[0] = T(elements.x);
  of.thread_elements()[1] = T(elements.y);
}

}  // namespace pamx
