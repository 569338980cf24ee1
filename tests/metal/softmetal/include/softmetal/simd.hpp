// metal_simdgroup and barriers: every operation deposits, waits for the simdgroup, and reads.
//
// 64-bit types, bool and bfloat are refused, as Metal's headers have no overloads for them (MLX's
// kernels add their own).
#pragma once

#include "as_type.hpp"
#include "fibres.hpp"
#include "math.hpp"

#define SM_SITE const char *file = __builtin_FILE(), uint line = __builtin_LINE()

namespace softmetal {

template <class T>
struct Seen {
  const unsigned char (*slots)[kSlotBytes];
  uint lane;
  uint lanes;
  unsigned char* result;
  bool* has_result;
  T at(uint i) const {
    T t;
    __builtin_memcpy((void*)&t, slots[i], sizeof t);
    return t;
  }
};

// Any type of up to 16 bytes.
template <class T>
inline Seen<T> exchange(const T& x, const char* operation, const char* file, uint line) {
  static_assert(sizeof(T) <= kSlotBytes, "a simd operation takes up to 16 bytes");
  Lane& me = group.lanes[group.current];
  const uint thread_ = group.current, first = thread_ & ~(kSimdWidth - 1);
  const uint simdgroup = thread_ / kSimdWidth;
  Exchange& e = group.exchanges[me.parity];
  me.parity ^= 1;
  e.has_result[simdgroup] = false;
  __builtin_memcpy(e.slots[thread_], (const void*)&x, sizeof x);
  wait(kAtSimdOperation, operation, file, line);
  return Seen<T>{e.slots + first, thread_ - first, simdgroup_size(), e.result[simdgroup],
                 &e.has_result[simdgroup]};
}

template <class T>
struct Operand {
  typedef typename metal::sm_plain<T>::type type;
  typedef typename metal::sm_element_of<type>::type element;
  static_assert(metal::is_arithmetic<element>::value, "a simd operation takes scalars and vectors");
  static_assert(!metal::is_same<element, bool>::value, "a simd operation does not take bool");
  static_assert(!metal::is_same<element, bfloat>::value,
                "a simd operation does not take bfloat: convert to float");
  static_assert(sizeof(element) <= 4, "a simd operation does not take 64-bit types");
};
template <class T>
using operand = typename Operand<T>::type;

// Order of a hardware tree: halves, then halves of them. Every lane gets the same bits.
template <class T, class F>
inline T reduce(const Seen<T>& seen, F f) {
  T r;
  if (*seen.has_result) {
    __builtin_memcpy((void*)&r, seen.result, sizeof r);
    return r;
  }
  T values[kSimdWidth];
  for (uint i = 0; i < seen.lanes; ++i) values[i] = seen.at(i);
  for (uint half_ = kSimdWidth / 2; half_; half_ /= 2)
    for (uint i = 0; i < half_ && i + half_ < seen.lanes; ++i)
      values[i] = f(values[i], values[i + half_]);
  __builtin_memcpy(seen.result, (const void*)&values[0], sizeof r);
  *seen.has_result = true;
  return values[0];
}

// What a lane that does not exist would have: nothing anybody should use.
template <class T>
inline T undefined() {
  T t;
  __builtin_memset((void*)&t, 0xff, sizeof t);
  return t;
}

}  // namespace softmetal

namespace metal {

#define SM_SEEN(name) \
  const auto seen = ::softmetal::exchange<::softmetal::operand<T>>(x, name, file, line)

template <class T>
inline ::softmetal::operand<T> simd_shuffle(const T& x, ushort lane, SM_SITE) {
  SM_SEEN("simd_shuffle");
  if (lane >= seen.lanes)
    ::softmetal::fail("simd_shuffle at %s:%u reads lane %u of %u", file, line, lane, seen.lanes);
  return seen.at(lane);
}
template <class T>
inline ::softmetal::operand<T> simd_broadcast(const T& x, ushort lane, SM_SITE) {
  SM_SEEN("simd_broadcast");
  if (lane >= seen.lanes)
    ::softmetal::fail("simd_broadcast at %s:%u reads lane %u of %u", file, line, lane, seen.lanes);
  return seen.at(lane);
}
template <class T>
inline ::softmetal::operand<T> simd_broadcast_first(const T& x, SM_SITE) {
  SM_SEEN("simd_broadcast_first");
  return seen.at(0);
}
template <class T>
inline ::softmetal::operand<T> simd_shuffle_xor(const T& x, ushort mask, SM_SITE) {
  SM_SEEN("simd_shuffle_xor");
  const uint from = seen.lane ^ mask;
  return from < seen.lanes ? seen.at(from) : ::softmetal::undefined<::softmetal::operand<T>>();
}
// Lanes without a source keep their own value: up and down do not wrap around.
template <class T>
inline ::softmetal::operand<T> simd_shuffle_up(const T& x, ushort delta, SM_SITE) {
  SM_SEEN("simd_shuffle_up");
  return seen.at(seen.lane >= delta ? seen.lane - delta : seen.lane);
}
template <class T>
inline ::softmetal::operand<T> simd_shuffle_down(const T& x, ushort delta, SM_SITE) {
  SM_SEEN("simd_shuffle_down");
  return seen.at(seen.lane + delta < seen.lanes ? seen.lane + delta : seen.lane);
}
template <class T>
inline ::softmetal::operand<T> simd_shuffle_rotate_up(const T& x, ushort delta, SM_SITE) {
  SM_SEEN("simd_shuffle_rotate_up");
  return seen.at((seen.lane + seen.lanes - delta % seen.lanes) % seen.lanes);
}
template <class T>
inline ::softmetal::operand<T> simd_shuffle_rotate_down(const T& x, ushort delta, SM_SITE) {
  SM_SEEN("simd_shuffle_rotate_down");
  return seen.at((seen.lane + delta) % seen.lanes);
}
// As up and down, but what comes from outside the simdgroup is taken from `fill`.
template <class T>
inline ::softmetal::operand<T> simd_shuffle_and_fill_up(const T& x, const T& fill, ushort delta,
                                                        SM_SITE) {
  SM_SEEN("simd_shuffle_and_fill_up");
  const auto filled =
      ::softmetal::exchange<::softmetal::operand<T>>(fill, "simd_shuffle_and_fill_up", file, line);
  return seen.lane >= delta ? seen.at(seen.lane - delta)
                            : filled.at(seen.lanes - delta + seen.lane);
}
template <class T>
inline ::softmetal::operand<T> simd_shuffle_and_fill_down(const T& x, const T& fill, ushort delta,
                                                          SM_SITE) {
  SM_SEEN("simd_shuffle_and_fill_down");
  const auto filled = ::softmetal::exchange<::softmetal::operand<T>>(
      fill, "simd_shuffle_and_fill_down", file, line);
  const uint from = seen.lane + delta;
  return from < seen.lanes ? seen.at(from) : filled.at(from - seen.lanes);
}

#define SM_REDUCTION(name, value)                                           \
  template <class T>                                                        \
  inline ::softmetal::operand<T> name(const T& x, SM_SITE) {                \
    typedef ::softmetal::operand<T> V;                                      \
    SM_SEEN(#name);                                                         \
    return ::softmetal::reduce<V>(seen, [](V a, V b) { return V(value); }); \
  }
SM_REDUCTION(simd_sum, a + b)
SM_REDUCTION(simd_product, a* b)
SM_REDUCTION(simd_max, max(a, b))
SM_REDUCTION(simd_min, min(a, b))
SM_REDUCTION(simd_and, a& b)
SM_REDUCTION(simd_or, a | b)
SM_REDUCTION(simd_xor, a ^ b)

#define SM_PREFIX(name, first, value, end)                   \
  template <class T>                                         \
  inline ::softmetal::operand<T> name(const T& x, SM_SITE) { \
    typedef ::softmetal::operand<T> V;                       \
    SM_SEEN(#name);                                          \
    V a = V(first);                                          \
    for (uint i = 0; i < end; ++i) {                         \
      const V b = seen.at(i);                                \
      a = V(value);                                          \
    }                                                        \
    return a;                                                \
  }
SM_PREFIX(simd_prefix_exclusive_sum, 0, a + b, seen.lane)
SM_PREFIX(simd_prefix_inclusive_sum, 0, a + b, seen.lane + 1)
SM_PREFIX(simd_prefix_exclusive_product, 1, a* b, seen.lane)
SM_PREFIX(simd_prefix_inclusive_product, 1, a* b, seen.lane + 1)

// ---- votes ------------------------------------------------------------------------------------

struct simd_vote {
  typedef ulong vote_t;
  vote_t bits;
  explicit constexpr simd_vote(vote_t b = 0) : bits(b) {}
  explicit constexpr operator vote_t() const { return bits; }
  constexpr bool all() const { return bits == 0xffffffffUL; }
  constexpr bool any() const { return bits != 0; }
};

inline simd_vote simd_ballot(bool x, SM_SITE) {
  const auto seen = ::softmetal::exchange(x, "simd_ballot", file, line);
  ulong bits = 0;
  for (uint i = 0; i < seen.lanes; ++i) bits |= ulong(seen.at(i)) << i;
  return simd_vote(bits);
}
inline bool simd_any(bool x, SM_SITE) {
  const auto seen = ::softmetal::exchange(x, "simd_any", file, line);
  bool r = false;
  for (uint i = 0; i < seen.lanes; ++i) r = r || seen.at(i);
  return r;
}
inline bool simd_all(bool x, SM_SITE) {
  const auto seen = ::softmetal::exchange(x, "simd_all", file, line);
  bool r = true;
  for (uint i = 0; i < seen.lanes; ++i) r = r && seen.at(i);
  return r;
}
inline bool simd_is_first() { return ::softmetal::group.current % ::softmetal::kSimdWidth == 0; }
inline simd_vote simd_active_threads_mask() {
  return simd_vote((1ul << ::softmetal::simdgroup_size()) - 1);
}

// ---- quads: four lanes ------------------------------------------------------------------------

template <class T>
inline ::softmetal::operand<T> quad_shuffle(const T& x, ushort lane, SM_SITE) {
  SM_SEEN("quad_shuffle");
  if (lane >= 4) ::softmetal::fail("quad_shuffle at %s:%u reads lane %u of 4", file, line, lane);
  return seen.at((seen.lane & ~3u) + lane);
}
template <class T>
inline ::softmetal::operand<T> quad_broadcast(const T& x, ushort lane, SM_SITE) {
  return quad_shuffle(x, lane, file, line);
}
template <class T>
inline ::softmetal::operand<T> quad_shuffle_xor(const T& x, ushort mask, SM_SITE) {
  SM_SEEN("quad_shuffle_xor");
  return seen.at(seen.lane ^ (mask & 3u));
}
template <class T>
inline ::softmetal::operand<T> quad_shuffle_up(const T& x, ushort delta, SM_SITE) {
  SM_SEEN("quad_shuffle_up");
  return seen.at((seen.lane & 3) >= delta ? seen.lane - delta : seen.lane);
}
template <class T>
inline ::softmetal::operand<T> quad_shuffle_down(const T& x, ushort delta, SM_SITE) {
  SM_SEEN("quad_shuffle_down");
  return seen.at((seen.lane & 3) + delta < 4 ? seen.lane + delta : seen.lane);
}
#define SM_QUAD_REDUCTION(name, value)                                          \
  template <class T>                                                            \
  inline ::softmetal::operand<T> name(const T& x, SM_SITE) {                    \
    typedef ::softmetal::operand<T> V;                                          \
    SM_SEEN(#name);                                                             \
    const auto f = [](V a, V b) { return V(value); };                           \
    const uint q = seen.lane & ~3u;                                             \
    return f(f(seen.at(q), seen.at(q + 2)), f(seen.at(q + 1), seen.at(q + 3))); \
  }
SM_QUAD_REDUCTION(quad_sum, a + b)
SM_QUAD_REDUCTION(quad_product, a* b)
SM_QUAD_REDUCTION(quad_max, max(a, b))
SM_QUAD_REDUCTION(quad_min, min(a, b))

// ---- barriers ---------------------------------------------------------------------------------

inline void simdgroup_barrier(mem_flags, SM_SITE) {
  ::softmetal::wait(::softmetal::kAtSimdOperation, "simdgroup_barrier", file, line);
}
inline void threadgroup_barrier(mem_flags, SM_SITE) {
  ::softmetal::wait(::softmetal::kAtBarrier, "threadgroup_barrier", file, line);
}

#undef SM_SEEN
#undef SM_REDUCTION
#undef SM_QUAD_REDUCTION
#undef SM_PREFIX

}  // namespace metal

inline ushort __metal_get_thread_index_in_simdgroup(ushort) {
  return ushort(softmetal::group.current % softmetal::kSimdWidth);
}
