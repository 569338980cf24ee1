// expect: 'd' is a double
#include <metal_stdlib>
using namespace metal;

kernel void k(device float* out [[buffer(0)]]) {
  double d = 1;
  out[0] = d;
}
