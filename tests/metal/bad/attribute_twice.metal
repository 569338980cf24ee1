// expect: are both buffer\(0\)
#include <metal_stdlib>
using namespace metal;

kernel void k(device float* out [[buffer(0)]], device float* in [[buffer(0)]]) { out[0] = in[0]; }
