// expect: calls itself
#include <metal_stdlib>
using namespace metal;

float g(int n);
float f(int n) { return n ? g(n - 1) : 1.0f; }
float g(int n) { return f(n); }
kernel void k(device float* out [[buffer(0)]]) { out[0] = f(3); }
