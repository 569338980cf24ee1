// metal_atomic: fibres never run at the same time, so plain loads and stores are atomic.
#pragma once

#include "traits.hpp"

#ifdef SM_CHECK  // OpenCL has types of these names
#define atomic_int sm_atomic_int
#define atomic_uint sm_atomic_uint
#define atomic_float sm_atomic_float
#define atomic_bool sm_atomic_bool
#endif

namespace metal {

enum memory_order { memory_order_relaxed };

template <class T>
struct atomic {
  static_assert(is_same<T, int>::value || is_same<T, uint>::value || is_same<T, float>::value ||
                    is_same<T, bool>::value || is_same<T, ulong>::value,
                "atomic of int, uint, float, bool or ulong");
  T sm_value;
};
typedef atomic<int> atomic_int;
typedef atomic<uint> atomic_uint;
typedef atomic<float> atomic_float;
typedef atomic<bool> atomic_bool;

#ifdef SM_CHECK
#define SM_ATOMIC(S)                                                                            \
  template <class T>                                                                            \
  T atomic_load_explicit(const volatile S atomic<T>*, memory_order);                            \
  template <class T, class U>                                                                   \
  void atomic_store_explicit(volatile S atomic<T>*, U, memory_order);                           \
  template <class T, class U>                                                                   \
  T atomic_exchange_explicit(volatile S atomic<T>*, U, memory_order);                           \
  template <class T, class U>                                                                   \
  T atomic_fetch_add_explicit(volatile S atomic<T>*, U, memory_order);                          \
  template <class T, class U>                                                                   \
  T atomic_fetch_sub_explicit(volatile S atomic<T>*, U, memory_order);                          \
  template <class T, class U>                                                                   \
  T atomic_fetch_max_explicit(volatile S atomic<T>*, U, memory_order);                          \
  template <class T, class U>                                                                   \
  T atomic_fetch_min_explicit(volatile S atomic<T>*, U, memory_order);                          \
  template <class T, class U>                                                                   \
  T atomic_fetch_and_explicit(volatile S atomic<T>*, U, memory_order);                          \
  template <class T, class U>                                                                   \
  T atomic_fetch_or_explicit(volatile S atomic<T>*, U, memory_order);                           \
  template <class T, class U>                                                                   \
  bool atomic_compare_exchange_weak_explicit(volatile S atomic<T>*, thread T*, U, memory_order, \
                                             memory_order);
SM_ATOMIC(device)
SM_ATOMIC(threadgroup)
#undef SM_ATOMIC
#else
template <class T>
inline T atomic_load_explicit(const volatile atomic<T>* a, memory_order) {
  return a->sm_value;
}
template <class T, class U>
inline void atomic_store_explicit(volatile atomic<T>* a, U x, memory_order) {
  a->sm_value = T(x);
}
#define SM_ATOMIC(name, value)                                                  \
  template <class T, class U>                                                   \
  inline T atomic_##name##_explicit(volatile atomic<T>* a, U x, memory_order) { \
    const T old = a->sm_value;                                                  \
    const T with = T(x);                                                        \
    a->sm_value = T(value);                                                     \
    return old;                                                                 \
  }
SM_ATOMIC(exchange, with)
SM_ATOMIC(fetch_add, old + with)
SM_ATOMIC(fetch_sub, old - with)
SM_ATOMIC(fetch_max, old < with ? with : old)
SM_ATOMIC(fetch_min, with < old ? with : old)
SM_ATOMIC(fetch_and, old& with)
SM_ATOMIC(fetch_or, old | with)
SM_ATOMIC(fetch_xor, old ^ with)
#undef SM_ATOMIC
template <class T, class U>
inline bool atomic_compare_exchange_weak_explicit(volatile atomic<T>* a, T* expected, U x,
                                                  memory_order, memory_order) {
  const T old = a->sm_value;
  const bool same = old == *expected;
  if (same) a->sm_value = T(x);
  *expected = old;
  return same;
}
#endif

}  // namespace metal

using metal::atomic_bool;
using metal::atomic_float;
using metal::atomic_int;
using metal::atomic_uint;
