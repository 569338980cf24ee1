// expect: a simd operation does not take 64-bit types
#include <metal_stdlib>
using namespace metal;

kernel void k(device long* out [[buffer(0)]], uint i [[thread_position_in_grid]]) { out[i] = simd_sum(out[i]); }
