#include <metal_stdlib>
using namespace metal;

struct Params {
  uint n;
  float scale;
};
kernel void k(device float* out [[buffer(0)]], constant Params& p [[buffer(1)]]) {
  Params copy = p;
  out[0] = copy.scale;
}
