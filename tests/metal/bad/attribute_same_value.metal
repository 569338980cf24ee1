// expect: two parameters of a kernel have the same attribute
#include <metal_stdlib>
using namespace metal;

enum { kOut = 0, kIn = 0 };
kernel void k(device float* out [[buffer(kOut)]], device float* in [[buffer(kIn)]]) { out[0] = in[0]; }
