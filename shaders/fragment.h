// The 8x8 fragments of simdgroup_matrix, by element: who holds what, and sums along rows.
//
// Lane l holds two elements: row fragment_row(l), columns fragment_column(l) and the one after.
// The Metal shading language leaves this order open; it has been the same on every Apple GPU, and
// MLX's matrix kernels (mlx/backend/metal/kernels/steel) build on it too. Kernels know it from this
// file alone, so that bench/metal_cuda can run them in the order of an NVIDIA warp.
#pragma once

#include <metal_simdgroup>
#include <metal_simdgroup_matrix>
#include <metal_stdlib>

namespace pamx {

using namespace metal;

template <typename T>
using Fragment = simdgroup_matrix<T, 8, 8>;

#ifdef PAMX_WARP_FRAGMENTS

inline ushort fragment_row(ushort lane) { return lane / 4; }
inline ushort fragment_column(ushort lane) { return lane % 4 * 2; }
inline ushort fragment_lane(ushort row, ushort column) { return row * 4 + column / 2; }
// Of a lane's number: the bits that its column depends on, and those of its row.
constant constexpr ushort COLUMN_BITS[2] = {1, 2};
constant constexpr ushort ROW_BITS[3] = {4, 8, 16};

#else

inline ushort fragment_row(ushort lane) { return ((lane >> 2) & 4) | ((lane >> 1) & 3); }
inline ushort fragment_column(ushort lane) { return ((lane >> 1) & 4) | ((lane & 1) << 1); }
inline ushort fragment_lane(ushort row, ushort column) {
  return row / 4 * 16 + column / 4 * 8 + row % 4 * 2 + column % 4 / 2;
}
constant constexpr ushort COLUMN_BITS[2] = {1, 8};
constant constexpr ushort ROW_BITS[3] = {2, 4, 16};

#endif

// Of a row of a fragment, from the two values of each lane merged into one.
inline float row_max(float value) {
  value = max(value, simd_shuffle_xor(value, COLUMN_BITS[0]));
  return max(value, simd_shuffle_xor(value, COLUMN_BITS[1]));
}

inline float row_sum(float value) {
  value += simd_shuffle_xor(value, COLUMN_BITS[0]);
  return value + simd_shuffle_xor(value, COLUMN_BITS[1]);
}

// Of a column, from one of the two values of each lane.
inline float column_max(float value) {
#pragma unroll
  for (int i = 0; i < 3; ++i) value = max(value, simd_shuffle_xor(value, ROW_BITS[i]));
  return value;
}

inline float column_sum(float value) {
#pragma unroll
  for (int i = 0; i < 3; ++i) value += simd_shuffle_xor(value, ROW_BITS[i]);
  return value;
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
