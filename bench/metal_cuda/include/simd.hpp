// metal_simdgroup and barriers over a warp of 32 threads.
#pragma once

namespace metal {

// Any type, a 32-bit word at a time.
template <class T, class F>
inline T sm_by_words(T value, F f) {
  union Words {
    T value;
    uint word[(sizeof(T) + 3) / 4];
    Words() {}
  } words;
  words.word[(sizeof(T) - 1) / 4] = 0;
  words.value = value;
  for (uint i = 0; i < (sizeof(T) + 3) / 4; ++i) words.word[i] = f(words.word[i]);
  return words.value;
}

template <class T>
inline T simd_shuffle(T x, ushort lane) {
  return sm_by_words(x, [=](uint word) { return __shfl_sync(~0u, word, lane); });
}
template <class T>
inline T simd_shuffle_xor(T x, ushort mask) {
  return sm_by_words(x, [=](uint word) { return __shfl_xor_sync(~0u, word, mask); });
}
template <class T>
inline T simd_shuffle_down(T x, ushort delta) {
  return sm_by_words(x, [=](uint word) { return __shfl_down_sync(~0u, word, delta); });
}
template <class T>
inline T simd_shuffle_up(T x, ushort delta) {
  return sm_by_words(x, [=](uint word) { return __shfl_up_sync(~0u, word, delta); });
}
template <class T>
inline T simd_broadcast(T x, ushort lane) {
  return simd_shuffle(x, lane);
}
template <class T>
inline T simd_broadcast_first(T x) {
  return simd_shuffle(x, ushort(0));
}
inline bool simd_any(bool x) { return __any_sync(~0u, x); }
inline bool simd_all(bool x) { return __all_sync(~0u, x); }

// Butterflies: every lane gets the same bits.
#define SM_REDUCTION(name, value)                              \
  template <class T>                                           \
  inline T name(T x) {                                         \
    for (int mask = 16; mask > 0; mask >>= 1) {                \
      const T y = simd_shuffle_xor(x, ushort(mask));           \
      x = T(value);                                            \
    }                                                          \
    return x;                                                  \
  }
SM_REDUCTION(simd_sum, x + y)
SM_REDUCTION(simd_product, x * y)
SM_REDUCTION(simd_max, max(x, y))
SM_REDUCTION(simd_min, min(x, y))
#undef SM_REDUCTION

inline void simdgroup_barrier(mem_flags) { __syncwarp(); }
inline void threadgroup_barrier(mem_flags) { __syncthreads(); }

}  // namespace metal
