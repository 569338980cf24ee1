// expect: 'total' at program scope is not in constant memory
#include <metal_stdlib>
using namespace metal;

float total = 1.0f;
kernel void k(device float* out [[buffer(0)]]) { out[0] = total; }
