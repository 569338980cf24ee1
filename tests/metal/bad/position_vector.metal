// expect: this position is a scalar
#include <metal_stdlib>
using namespace metal;

kernel void k(device float* out [[buffer(0)]], uint3 i [[thread_index_in_simdgroup]]) { out[i.x] = 1; }
