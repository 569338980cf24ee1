// Run mode: what the shading language adds to C++, as clang for the CPU has it. Address spaces are
// erased; functions have bodies. No C or C++ library is included, so a shader cannot use one.
#pragma once

#define device
#define constant const
#define threadgroup
#define thread

#define SM_FN inline
#define SM_BODY(...) {__VA_ARGS__}
#define SM_BUILTIN(name) __builtin_##name##f
#define SM_COPY_ELEMENTS(N, from) \
  for (int i = 0; i < N; ++i) v[i] = from.v[i];
#define SM_POPCOUNT(x) __builtin_popcountll(x)
#define SM_CLZ(x) __builtin_clzll(x)
#define SM_CTZ(x) __builtin_ctzll(x)

typedef _Float16 half;
typedef __bf16 bfloat;
