// What the software Metal's headers ask of a compiler, as CUDA has it, and CUDA's functions under
// names of their own: Metal's functions of the same names would be ambiguous with them.
#pragma once

typedef __nv_bfloat16 bfloat;

#ifndef __SIZE_TYPE__
#define __SIZE_TYPE__ unsigned long
#define __PTRDIFF_TYPE__ long
#endif

// Named as names.hpp renames the shaders' own uses.
namespace sm_cuda {

#define SM_CUDA_1(name) \
  inline float metal_##name(float x) { return ::name##f(x); }
#define SM_CUDA_2(name) \
  inline float metal_##name(float x, float y) { return ::name##f(x, y); }
SM_CUDA_1(exp)
SM_CUDA_1(log)
SM_CUDA_1(log2)
SM_CUDA_1(log10)
SM_CUDA_1(sin)
SM_CUDA_1(cos)
SM_CUDA_1(tan)
SM_CUDA_1(tanh)
SM_CUDA_1(sqrt)
SM_CUDA_1(sinh)
SM_CUDA_1(cosh)
SM_CUDA_1(asin)
SM_CUDA_1(acos)
SM_CUDA_1(atan)
SM_CUDA_1(floor)
SM_CUDA_1(ceil)
SM_CUDA_1(trunc)
SM_CUDA_1(round)
SM_CUDA_1(rint)
SM_CUDA_1(fabs)
SM_CUDA_2(pow)
SM_CUDA_2(fmod)
SM_CUDA_2(atan2)
SM_CUDA_2(copysign)
SM_CUDA_2(fmax)
SM_CUDA_2(fmin)
// As a GPU's own instruction computes it, subnormal numbers being zero.
inline float metal_exp2(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
inline float metal_fma(float x, float y, float z) { return __fmaf_rn(x, y, z); }
inline float metal_ldexp(float x, int k) { return ldexpf(x, k); }
#undef SM_CUDA_1
#undef SM_CUDA_2

// A vector is copied in one access, or in several of 16 bytes: element by element the compiler would
// not join them again.
template <int Bytes>
struct Copy {
  static void apply(void* to, const void* from) {
    for (int i = 0; i < Bytes; ++i) ((char*)to)[i] = ((const char*)from)[i];
  }
};
#define SM_COPY(bytes, type)                             \
  template <>                                            \
  struct Copy<bytes> {                                   \
    static void apply(void* to, const void* from) {      \
      for (int i = 0; i < bytes / int(sizeof(type)); ++i) \
        ((type*)to)[i] = ((const type*)from)[i];         \
    }                                                    \
  };
SM_COPY(2, unsigned short)
SM_COPY(4, unsigned)
SM_COPY(8, ::uint2)
SM_COPY(16, ::uint4)
SM_COPY(32, ::uint4)
#undef SM_COPY

}  // namespace sm_cuda

#define SM_FN inline
#define SM_BODY(...) { __VA_ARGS__ }
#define SM_BUILTIN(name) ::sm_cuda::name
#define SM_COPY_ELEMENTS(N, from) ::sm_cuda::Copy<int(sizeof(vec))>::apply((void*)v, (const void*)from.v);
#define SM_POPCOUNT(x) __popcll(x)
#define SM_CLZ(x) __clzll(x)
#define SM_CTZ(x) (__ffsll(x) - 1)
#define __builtin_inff() __int_as_float(0x7f800000)
#define __builtin_nanf(text) __int_as_float(0x7fc00000)
#define __builtin_memcpy memcpy
