// expect: MetalPerformancePrimitives needs language version 400
#include <metal_stdlib>
using namespace metal;

#include <MetalPerformancePrimitives/MetalPerformancePrimitives.h>
kernel void k(device float* out [[buffer(0)]]) { out[0] = 1; }
