// expect: call to 'max' is ambiguous
#include <metal_stdlib>
using namespace metal;

kernel void k(device half* out [[buffer(0)]]) { out[0] = max(out[1], 1.0f); }
