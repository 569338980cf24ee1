// expect: no viable overloaded '='
#include <metal_stdlib>
using namespace metal;

kernel void k(device float4* out [[buffer(0)]], const device half4* in [[buffer(1)]]) { out[0] = in[0]; }
