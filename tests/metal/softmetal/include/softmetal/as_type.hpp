// as_type<T>(x): the bits of x read as a T.
#pragma once

#include "vec.hpp"

#ifdef SM_CHECK
template <class To, class From>
To as_type(From);
#else
template <class To, class From>
inline To as_type(const From& from) {
  typedef typename metal::sm_plain<From>::type Plain;
  static_assert(sizeof(To) == sizeof(Plain), "as_type between types of different sizes");
  const Plain plain = from;
  To to;
  __builtin_memcpy((void*)&to, (const void*)&plain, sizeof to);
  return to;
}
#endif
