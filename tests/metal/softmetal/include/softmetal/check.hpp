// All that a translated .metal file sees in check mode: declarations with Metal's address spaces.
#pragma once
#pragma clang system_header

#include "check_mode.hpp"
//
#include "types.hpp"
//
#include "as_type.hpp"
#include "atomic.hpp"
#include "limits.hpp"
#include "math.hpp"
#include "packed.hpp"
#include "vec.hpp"

namespace metal {

#define SM_SIMD(name, ...) \
  template <class T>       \
  typename sm_plain<T>::type name(T x __VA_ARGS__);
SM_SIMD(simd_shuffle, , ushort)
SM_SIMD(simd_broadcast, , ushort)
SM_SIMD(simd_broadcast_first)
SM_SIMD(simd_shuffle_xor, , ushort)
SM_SIMD(simd_shuffle_up, , ushort)
SM_SIMD(simd_shuffle_down, , ushort)
SM_SIMD(simd_shuffle_rotate_up, , ushort)
SM_SIMD(simd_shuffle_rotate_down, , ushort)
SM_SIMD(simd_shuffle_and_fill_up, , T, ushort)
SM_SIMD(simd_shuffle_and_fill_down, , T, ushort)
SM_SIMD(simd_sum)
SM_SIMD(simd_product)
SM_SIMD(simd_max)
SM_SIMD(simd_min)
SM_SIMD(simd_and)
SM_SIMD(simd_or)
SM_SIMD(simd_xor)
SM_SIMD(simd_prefix_exclusive_sum)
SM_SIMD(simd_prefix_inclusive_sum)
SM_SIMD(simd_prefix_exclusive_product)
SM_SIMD(simd_prefix_inclusive_product)
SM_SIMD(quad_shuffle, , ushort)
SM_SIMD(quad_broadcast, , ushort)
SM_SIMD(quad_shuffle_xor, , ushort)
SM_SIMD(quad_shuffle_up, , ushort)
SM_SIMD(quad_shuffle_down, , ushort)
SM_SIMD(quad_sum)
SM_SIMD(quad_product)
SM_SIMD(quad_max)
SM_SIMD(quad_min)
#undef SM_SIMD

struct simd_vote {
  typedef ulong vote_t;
  vote_t bits;
  explicit simd_vote(vote_t);
  explicit operator vote_t() const;
  bool all() const;
  bool any() const;
};
simd_vote simd_ballot(bool);
simd_vote simd_active_threads_mask();
bool simd_any(bool);
bool simd_all(bool);
bool simd_is_first();
void simdgroup_barrier(mem_flags);
void threadgroup_barrier(mem_flags);

template <class T, int Columns, int Rows = Columns>
struct simdgroup_matrix {
  typedef vec<T, 2> storage_type;
  storage_type sm_elements;
  simdgroup_matrix() {}
  explicit simdgroup_matrix(T) {}
  thread storage_type& thread_elements() thread;
  const thread storage_type& thread_elements() const thread;
};
typedef simdgroup_matrix<float, 8, 8> simdgroup_float8x8;
typedef simdgroup_matrix<half, 8, 8> simdgroup_half8x8;
typedef simdgroup_matrix<bfloat, 8, 8> simdgroup_bfloat8x8;

template <class T, int Columns, int Rows = Columns>
simdgroup_matrix<T, Columns, Rows> make_filled_simdgroup_matrix(T);
#define SM_MATRIX(S)                                                                   \
  template <class T>                                                                   \
  void simdgroup_load(thread simdgroup_matrix<T, 8, 8>&, const S T*, ulong = 8,        \
                      ulong2 = ulong2(0), bool = false);                               \
  template <class T>                                                                   \
  void simdgroup_store(simdgroup_matrix<T, 8, 8>, S T*, ulong = 8, ulong2 = ulong2(0), \
                       bool = false);
SM_MATRIX(device)
SM_MATRIX(threadgroup)
#undef SM_MATRIX
template <class D, class A, class B, class C>
void simdgroup_multiply_accumulate(thread simdgroup_matrix<D, 8, 8>&,
                                   thread const simdgroup_matrix<A, 8, 8>&,
                                   thread const simdgroup_matrix<B, 8, 8>&,
                                   thread const simdgroup_matrix<C, 8, 8>&);
template <class D, class A, class B>
void simdgroup_multiply(thread simdgroup_matrix<D, 8, 8>&, thread const simdgroup_matrix<A, 8, 8>&,
                        thread const simdgroup_matrix<B, 8, 8>&);
template <class T>
simdgroup_matrix<T, 8, 8> operator*(thread const simdgroup_matrix<T, 8, 8>&,
                                    thread const simdgroup_matrix<T, 8, 8>&);

}  // namespace metal

ushort __metal_get_thread_index_in_simdgroup(ushort);

// A __local variable is only allowed in an OpenCL kernel, and Metal's are plain functions here.
#define SM_THREADGROUP_VARIABLE(dims, name, ...) \
  typedef __VA_ARGS__ sm_type_##name dims;       \
  threadgroup sm_type_##name& name = *(threadgroup sm_type_##name*)0;
#define SM_FUNCTION_CONSTANT(index, name, ...) constant __VA_ARGS__ name = __VA_ARGS__(index);
#define SM_DERIVED_CONSTANT(name, type, ...) constant type name = __VA_ARGS__;
#define is_function_constant_defined(name) ((void)(name), true)
