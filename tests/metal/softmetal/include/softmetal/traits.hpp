// metal_type_traits: the traits that shaders use, on the compiler's own predicates.
#pragma once

#include "types.hpp"

namespace metal {

template <class T, T v>
struct integral_constant {
  static constexpr constant T value = v;
  typedef T value_type;
  typedef integral_constant type;
  constexpr operator T() const { return v; }
};
template <bool b>
using bool_constant = integral_constant<bool, b>;
typedef bool_constant<true> true_type;
typedef bool_constant<false> false_type;

template <bool, class T = void>
struct enable_if {};
template <class T>
struct enable_if<true, T> {
  typedef T type;
};
template <bool b, class T = void>
using enable_if_t = typename enable_if<b, T>::type;

template <bool, class A, class B>
struct conditional {
  typedef A type;
};
template <class A, class B>
struct conditional<false, A, B> {
  typedef B type;
};
template <bool b, class A, class B>
using conditional_t = typename conditional<b, A, B>::type;

template <class T>
struct remove_reference {
  typedef T type;
};
template <class T>
struct remove_reference<T&> {
  typedef T type;
};
template <class T>
struct remove_reference<T&&> {
  typedef T type;
};
template <class T>
using remove_reference_t = typename remove_reference<T>::type;

template <class T>
struct remove_cv {
  typedef T type;
};
template <class T>
struct remove_cv<const T> {
  typedef T type;
};
template <class T>
struct remove_cv<volatile T> {
  typedef T type;
};
template <class T>
struct remove_cv<const volatile T> {
  typedef T type;
};
template <class T>
using remove_cv_t = typename remove_cv<T>::type;
template <class T>
using remove_const_t = remove_cv_t<T>;

// The type without address space and qualifiers.
template <class T>
struct remove_addrspace {
  typedef remove_cv_t<T> type;
};
#ifdef SM_CHECK
template <class T>
struct remove_addrspace<device T> {
  typedef remove_cv_t<T> type;
};
#ifndef SM_CONSTANT_IS_DEVICE
template <class T>
struct remove_addrspace<constant T> {
  typedef remove_cv_t<T> type;
};
#endif
template <class T>
struct remove_addrspace<threadgroup T> {
  typedef remove_cv_t<T> type;
};
template <class T>
struct remove_addrspace<thread T> {
  typedef remove_cv_t<T> type;
};
#endif
template <class T>
using remove_addrspace_t = typename remove_addrspace<T>::type;

template <class A, class B>
struct is_same : false_type {};
template <class A>
struct is_same<A, A> : true_type {};

template <class T>
struct is_floating_point : false_type {};
template <>
struct is_floating_point<float> : true_type {};
template <>
struct is_floating_point<half> : true_type {};
template <>
struct is_floating_point<bfloat> : true_type {};

template <class T>
struct is_integral : false_type {};
#define SM_INTEGRAL(T) \
  template <>          \
  struct is_integral<T> : true_type {};
SM_INTEGRAL(bool)
SM_INTEGRAL(char)
SM_INTEGRAL(signed char)
SM_INTEGRAL(uchar)
SM_INTEGRAL(short)
SM_INTEGRAL(ushort)
SM_INTEGRAL(int)
SM_INTEGRAL(uint)
SM_INTEGRAL(long)
SM_INTEGRAL(ulong)
#undef SM_INTEGRAL

template <class T>
struct is_arithmetic : bool_constant<is_integral<T>::value || is_floating_point<T>::value> {};
template <class T, bool = is_arithmetic<T>::value>
struct is_signed : bool_constant<(T(-1) < T(0))> {};
template <class T>
struct is_signed<T, false> : false_type {};
template <class T>
struct is_unsigned : bool_constant<is_integral<T>::value && !is_signed<T>::value> {};
template <class A, class B>
struct is_convertible : bool_constant<__is_convertible_to(A, B)> {};

template <class A, class B>
constexpr constant bool is_same_v = is_same<A, B>::value;
template <class T>
constexpr constant bool is_floating_point_v = is_floating_point<T>::value;
template <class T>
constexpr constant bool is_integral_v = is_integral<T>::value;
template <class T>
constexpr constant bool is_arithmetic_v = is_arithmetic<T>::value;
template <class T>
constexpr constant bool is_signed_v = is_signed<T>::value;
template <class T>
constexpr constant bool is_unsigned_v = is_unsigned<T>::value;

}  // namespace metal
