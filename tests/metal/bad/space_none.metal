// expect: 'p' is a pointer without an address space
#include <metal_stdlib>
using namespace metal;

kernel void k(device float* out [[buffer(0)]]) {
  float* p = out;
  *p = 1;
}
