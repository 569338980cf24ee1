// expect: unknown attribute 'bufer'
#include <metal_stdlib>
using namespace metal;

kernel void k(device float* out [[bufer(0)]]) { out[0] = 1; }
