// expect: changes address space of pointer
#include <metal_stdlib>
using namespace metal;

kernel void k(device float* out [[buffer(0)]], threadgroup float* t [[threadgroup(0)]]) { t = out; }
