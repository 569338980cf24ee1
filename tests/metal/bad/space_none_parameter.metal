// expect: 'p' is a pointer without an address space
#include <metal_stdlib>
using namespace metal;

void f(float* p) { p[0] = 0; }
kernel void k(device float* out [[buffer(0)]]) {
  float x;
  f(&x);
  out[0] = x;
}
