// expect: a kernel returns void
#include <metal_stdlib>
using namespace metal;

kernel float k(device float* out [[buffer(0)]]) { return out[0]; }
