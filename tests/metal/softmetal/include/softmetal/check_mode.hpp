// Check mode: clang's C++ for OpenCL, whose address spaces are Metal's under other names.
// Declarations are enough, no code is generated.
#pragma once

#pragma OPENCL EXTENSION cl_khr_fp16 : enable
#pragma OPENCL EXTENSION __cl_clang_function_pointers : enable

#define device __global
// C++ for OpenCL has no copy of a plain struct out of __constant, which Metal has. A shader whose
// only fault is that copy is read again with `constant` as another word for read-only device
// memory.
#ifdef SM_CONSTANT_IS_DEVICE
#define constant const __global
#else
#define constant __constant
#endif
#define threadgroup __local
#define thread __private

// Keywords there, plain names in Metal.
#define local sm_name_local
#define global sm_name_global
#define generic sm_name_generic
#define pipe sm_name_pipe
#define read_only sm_name_read_only
#define write_only sm_name_write_only
#define read_write sm_name_read_write

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
