// expect: 'n' of k has no attribute
#include <metal_stdlib>
using namespace metal;

kernel void k(device float* out [[buffer(0)]], uint n) { out[n] = 1; }
