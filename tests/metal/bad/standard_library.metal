// expect: undeclared identifier 'printf'
#include <metal_stdlib>
using namespace metal;

kernel void k(device float* out [[buffer(0)]]) { out[0] = printf("x"); }
