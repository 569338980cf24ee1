// numeric_limits of every scalar type.
#pragma once

#include "constants.hpp"
#include "traits.hpp"

namespace metal {

template <class T>
struct numeric_limits;

#define SM_INTEGER_LIMITS(T, low, high)         \
  template <>                                   \
  struct numeric_limits<T> {                    \
    static constexpr T min() { return low; }    \
    static constexpr T lowest() { return low; } \
    static constexpr T max() { return high; }   \
  };
SM_INTEGER_LIMITS(bool, false, true)
SM_INTEGER_LIMITS(char, -128, 127)
SM_INTEGER_LIMITS(signed char, -128, 127)
SM_INTEGER_LIMITS(uchar, 0, 255)
SM_INTEGER_LIMITS(short, -32768, 32767)
SM_INTEGER_LIMITS(ushort, 0, 65535)
SM_INTEGER_LIMITS(int, -2147483647 - 1, 2147483647)
SM_INTEGER_LIMITS(uint, 0, 4294967295u)
SM_INTEGER_LIMITS(long, -9223372036854775807L - 1, 9223372036854775807L)
SM_INTEGER_LIMITS(ulong, 0, 18446744073709551615UL)
#undef SM_INTEGER_LIMITS

#define SM_FLOAT_LIMITS(T, smallest, largest, step)                  \
  template <>                                                        \
  struct numeric_limits<T> {                                         \
    static constexpr T min() { return T(smallest); }                 \
    static constexpr T lowest() { return T(-largest); }              \
    static constexpr T max() { return T(largest); }                  \
    static constexpr T epsilon() { return T(step); }                 \
    static constexpr T infinity() { return T(__builtin_inff()); }    \
    static constexpr T quiet_NaN() { return T(__builtin_nanf("")); } \
  };
SM_FLOAT_LIMITS(float, FLT_MIN, FLT_MAX, FLT_EPSILON)
SM_FLOAT_LIMITS(half, 6.103515625e-5f, 65504.0f, 9.765625e-4f)
SM_FLOAT_LIMITS(bfloat, FLT_MIN, 3.38953138925153547590e+38f, 7.8125e-3f)
#undef SM_FLOAT_LIMITS

}  // namespace metal
