// expect: 'fragment' is a keyword of Metal
#include <metal_stdlib>
using namespace metal;

inline float twice(float fragment) { return fragment + fragment; }

kernel void k(device float* out [[buffer(0)]]) { out[0] = twice(1.0f); }
