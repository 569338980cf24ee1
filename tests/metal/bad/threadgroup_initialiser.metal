// expect: a threadgroup variable has no initialiser
#include <metal_stdlib>
using namespace metal;

kernel void k(device float* out [[buffer(0)]]) {
  threadgroup float x[2] = {1, 2};
  out[0] = x[0];
}
