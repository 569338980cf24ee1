#include <metal_stdlib>
using namespace metal;

kernel void k(device atomic_uint* count [[buffer(0)]], device int* out [[buffer(1)]],
              uint i [[thread_position_in_grid]]) {
  out[i] = int(atomic_fetch_add_explicit(&count[0], 1u, memory_order_relaxed));
}
