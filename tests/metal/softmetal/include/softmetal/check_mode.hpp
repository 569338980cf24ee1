// Check mode: clang's C++ for OpenCL, whose address spaces are Metal's under other names.
// Declarations are enough, no code is generated.
#pragma once

#pragma OPENCL EXTENSION cl_khr_fp16 : enable
#pragma OPENCL EXTENSION __cl_clang_function_pointers : enable

#define device __global
#define constant __constant
#define threadgroup __local
#define thread __private

#define SM_CHECK 1
#define SM_FN
#define SM_BODY(...) ;
#define SM_BUILTIN(name)
#define SM_COPY_ELEMENTS(N, from) \
  for (int i = 0; i < N; ++i) v[i] = from.v[i];
#define SM_POPCOUNT(x) 0
#define SM_CLZ(x) 0
#define SM_CTZ(x) 0

typedef __bf16 bfloat;
