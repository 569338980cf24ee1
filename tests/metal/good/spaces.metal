#include <metal_stdlib>
using namespace metal;

template <typename T>
void scale(thread T* values, const device T* by, threadgroup T* staged, constant float& factor) {
  for (int i = 0; i < 4; ++i) values[i] = by[i] * staged[i] * factor;
}
kernel void k(device float* out [[buffer(0)]], constant float& factor [[buffer(1)]],
              threadgroup float* staged [[threadgroup(0)]]) {
  threadgroup float mine[4];
  float values[4];
  for (int i = 0; i < 4; ++i) mine[i] = staged[i] = out[i];
  scale(values, out, mine, factor);
  for (int i = 0; i < 4; ++i) out[i] = values[i];
}
