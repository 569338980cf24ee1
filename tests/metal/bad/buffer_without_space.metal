// expect: 'out' of k must be a device or constant pointer
#include <metal_stdlib>
using namespace metal;

kernel void k(float* out [[buffer(0)]]) { out[0] = 1; }
