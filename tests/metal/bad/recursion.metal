// expect: f calls itself
#include <metal_stdlib>
using namespace metal;

float f(int n) { return n ? f(n - 1) : 1.0f; }
kernel void k(device float* out [[buffer(0)]]) { out[0] = f(3); }
