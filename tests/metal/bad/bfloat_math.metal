// expect: call to 'max' is ambiguous|no matching function for call to 'max'
#include <metal_stdlib>
using namespace metal;

kernel void k(device bfloat* out [[buffer(0)]]) { out[0] = bfloat(max(out[0], out[1])); }
