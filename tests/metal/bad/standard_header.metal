// expect: 'cmath' file not found
#include <metal_stdlib>
using namespace metal;

#include <cmath>
kernel void k(device float* out [[buffer(0)]]) { out[0] = std::exp(out[0]); }
