// expect: threadgroup variable 'big' exceeds 32 KiB
#include <metal_stdlib>
using namespace metal;

kernel void k(device float* out [[buffer(0)]]) {
  threadgroup float big[8193];
  big[0] = 1;
  out[0] = big[0];
}
