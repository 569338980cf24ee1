// expect: a position is uint or ushort
#include <metal_stdlib>
using namespace metal;

kernel void k(device float* out [[buffer(0)]], int i [[thread_position_in_grid]]) { out[i] = 1; }
