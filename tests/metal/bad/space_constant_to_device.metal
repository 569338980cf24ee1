// expect: cannot initialize a variable of type 'const __global float \*
#include <metal_stdlib>
using namespace metal;

kernel void k(device float* out [[buffer(0)]], constant float* in [[buffer(1)]]) {
  const device float* p = in;
  out[0] = p[0];
}
