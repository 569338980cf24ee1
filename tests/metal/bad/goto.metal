// expect: goto is not part of Metal
#include <metal_stdlib>
using namespace metal;

kernel void k(device float* out [[buffer(0)]]) {
  goto end;
end:
  out[0] = 0;
}
