// expect: cannot initialize a variable of type '__global float \*
#include <metal_stdlib>
using namespace metal;

kernel void k(device float* out [[buffer(0)]]) {
  float a[4] = {0, 0, 0, 0};
  device float* p = a;
  out[0] = p[0];
}
