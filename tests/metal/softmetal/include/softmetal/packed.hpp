// packed_float3 and its like: the elements of a vector, aligned as one element.
#pragma once

#include "vec.hpp"

namespace metal {

template <class T, int N>
struct packed_vec {
  T v[N];
  packed_vec() {}
  packed_vec(const vec<T, N>& from) {
    for (int i = 0; i < N; ++i) v[i] = from.v[i];
  }
  operator vec<T, N>() const {
    vec<T, N> r;
    for (int i = 0; i < N; ++i) r.v[i] = v[i];
    return r;
  }
  T& operator[](int i) { return v[i]; }
  T operator[](int i) const { return v[i]; }
};

}  // namespace metal

#define SM_NAMES(T)                       \
  namespace metal {                       \
  typedef packed_vec<T, 2> packed_##T##2; \
  typedef packed_vec<T, 3> packed_##T##3; \
  typedef packed_vec<T, 4> packed_##T##4; \
  }                                       \
  using metal::packed_##T##2;             \
  using metal::packed_##T##3;             \
  using metal::packed_##T##4;
SM_NAMES(float)
SM_NAMES(half)
SM_NAMES(bfloat)
SM_NAMES(char)
SM_NAMES(uchar)
SM_NAMES(short)
SM_NAMES(ushort)
SM_NAMES(int)
SM_NAMES(uint)
#undef SM_NAMES
