// expect: a wider scalar meets a narrower vector
#include <metal_stdlib>
using namespace metal;

kernel void k(device half4* out [[buffer(0)]]) { out[0] = out[1] * 2.0f; }
