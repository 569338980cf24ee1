#include <metal_stdlib>
using namespace metal;

kernel void k(device float* out [[buffer(0)]], uint i [[thread_position_in_grid]]) {
  int a = abs(int(i) - 4);
  out[i] = exp2(1.0) + max(0.0, out[i]) + a;
}
