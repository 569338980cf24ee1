// expect: a buffer index is below 31
#include <metal_stdlib>
using namespace metal;

kernel void k(device float* out [[buffer(31)]]) { out[0] = 1; }
