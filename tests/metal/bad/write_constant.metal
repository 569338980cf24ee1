// expect: read-only variable is not assignable
#include <metal_stdlib>
using namespace metal;

kernel void k(constant float* out [[buffer(0)]]) { out[0] = 1; }
