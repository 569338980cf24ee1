// expect: a simd operation does not take bool
#include <metal_stdlib>
using namespace metal;

kernel void k(device float* out [[buffer(0)]], uint i [[thread_position_in_grid]]) {
  bool b = simd_shuffle(i > 3, 0);
  out[i] = b;
}
