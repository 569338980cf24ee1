// expect: a lambda expression is not part of Metal
#include <metal_stdlib>
using namespace metal;

kernel void k(device float* out [[buffer(0)]]) {
  auto f = [](float x) { return x; };
  out[0] = f(1.0f);
}
