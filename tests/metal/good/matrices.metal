#include <metal_stdlib>
using namespace metal;

#include <metal_simdgroup_matrix>
kernel void k(device float* out [[buffer(0)]], const device half* in [[buffer(1)]]) {
  simdgroup_matrix<half, 8, 8> a, b;
  simdgroup_matrix<float, 8, 8> c = make_filled_simdgroup_matrix<float, 8, 8>(0.0f);
  simdgroup_load(a, in, 8);
  simdgroup_load(b, in + 64, 8, ulong2(0), true);
  simdgroup_multiply_accumulate(c, a, b, c);
  c.thread_elements()[0] *= 2.0f;
  simdgroup_store(c, out, 8);
}
