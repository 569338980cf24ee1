// expect: declared in a kernel, nowhere else
#include <metal_stdlib>
using namespace metal;

void f(device float* out) {
  threadgroup float x[2];
  x[0] = 0;
  out[0] = x[0];
}
kernel void k(device float* out [[buffer(0)]]) { f(out); }
