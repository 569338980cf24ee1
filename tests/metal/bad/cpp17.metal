// expect: constexpr if is a C\+\+17 extension
#include <metal_stdlib>
using namespace metal;

template <int N>
void f(device float* out) {
  if constexpr (N > 1) out[0] = 1;
}
kernel void k(device float* out [[buffer(0)]]) { f<2>(out); }
