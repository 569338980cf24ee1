// Kernels that compile, and do at run time what no kernel may do: test_wrong_at_run_time.py.
#include <metal_stdlib>
using namespace metal;

kernel void reads_past_end(device float* out [[buffer(0)]], const device float* in [[buffer(1)]],
                           uint i [[thread_position_in_grid]]) {
  out[i] = in[i + 1];
}

kernel void writes_past_end(device float* out [[buffer(0)]], uint i [[thread_position_in_grid]]) {
  out[i + 1] = 1.0f;
}

kernel void reads_before_start(device float* out [[buffer(0)]], const device float* in [[buffer(1)]],
                               uint i [[thread_position_in_grid]]) {
  out[i] = in[int(i) - 1];
}

kernel void writes_before_start(device float* out [[buffer(0)]],
                                uint i [[thread_position_in_grid]]) {
  out[int(i) - 1] = 1.0f;
}

kernel void writes_far_away(device float* out [[buffer(0)]], uint i [[thread_position_in_grid]]) {
  out[i + 1000000] = 1.0f;
}

kernel void writes_to_const(const device float* in [[buffer(0)]],
                            uint i [[thread_position_in_grid]]) {
  ((device float*)in)[i] = 1.0f;
}

kernel void divides_by_zero(device int* out [[buffer(0)]], uint i [[thread_position_in_grid]]) {
  out[i] = 7 / out[i];
}

kernel void diverges_at_sum(device float* out [[buffer(0)]], uint i [[thread_position_in_grid]]) {
  float x = 1.0f;
  if (i < 16) x = simd_sum(x);
  out[i] = x;
}

kernel void diverges_between_operations(device float* out [[buffer(0)]],
                                        uint i [[thread_position_in_grid]]) {
  float x = 1.0f;
  if (i < 16)
    x = simd_sum(x);
  else
    x = simd_max(x);
  out[i] = x;
}

kernel void diverges_at_matrix(device float* out [[buffer(0)]],
                               uint i [[thread_position_in_grid]]) {
  simdgroup_float8x8 m = make_filled_simdgroup_matrix<float, 8, 8>(1.0f);
  if (i < 31) simdgroup_store(m, out, 8);
}

kernel void shuffles_from_nobody(device float* out [[buffer(0)]],
                                 uint i [[thread_position_in_grid]]) {
  out[i] = simd_shuffle(float(i), ushort(i + 1));
}

kernel void barrier_for_some(device float* out [[buffer(0)]],
                             uint i [[thread_position_in_grid]]) {
  if (i >= 32) return;
  threadgroup_barrier(mem_flags::mem_threadgroup);
  out[i] = 1.0f;
}

// Every thread meets the same number of barriers, but not the same ones.
kernel void barriers_crossed(device float* out [[buffer(0)]],
                             uint i [[thread_position_in_grid]]) {
  if (i < 32)
    threadgroup_barrier(mem_flags::mem_threadgroup);
  else
    threadgroup_barrier(mem_flags::mem_device);
  out[i] = 1.0f;
}

kernel void barrier_missing(device float* out [[buffer(0)]],
                            uint i [[thread_position_in_grid]]) {
  threadgroup float staged[64];
  staged[i] = float(i);
  out[i] = staged[63 - i];
}

// In one simdgroup, where a GPU's lanes might or might not keep step.
kernel void simdgroup_barrier_missing(device float* out [[buffer(0)]],
                                      uint i [[thread_position_in_grid]]) {
  threadgroup float staged[32];
  staged[i] = float(i);
  out[i] = staged[31 - i];
}

// Right only if lanes run in ascending order.
kernel void lanes_in_order(device float* out [[buffer(0)]], uint i [[thread_position_in_grid]]) {
  threadgroup float staged[32];
  staged[i] = float(i);
  out[i] = staged[i == 0 ? 0 : i - 1];
}

// Right only if simdgroups run in ascending order.
kernel void simdgroups_in_order(device float* out [[buffer(0)]],
                                uint i [[thread_position_in_grid]]) {
  threadgroup float staged[64];
  staged[i] = float(i);
  simdgroup_barrier(mem_flags::mem_threadgroup);
  out[i] = staged[i < 32 ? i : i - 32];
}

// The largest of four simdgroups' values, read from eight slots.
kernel void leftovers_in_maximum(device float* out [[buffer(0)]],
                                 uint i [[thread_position_in_grid]],
                                 uint lane [[thread_index_in_simdgroup]],
                                 uint simdgroup [[simdgroup_index_in_threadgroup]]) {
  threadgroup float top[8];
  const float mine = simd_max(float(i));
  if (lane == 0) top[simdgroup] = mine;
  threadgroup_barrier(mem_flags::mem_threadgroup);
  out[i] = simd_max(top[lane % 8]);
}

// Threadgroups of one grid cannot wait for each other.
kernel void races_between_threadgroups(device float* out [[buffer(0)]],
                                       uint group [[threadgroup_position_in_grid]]) {
  if (group == 0) out[0] = 1.0f;
  if (group == 1) out[1] = out[0] + 1.0f;
}

kernel void threadgroup_memory_past_end(device float* out [[buffer(0)]],
                                        uint i [[thread_position_in_grid]]) {
  threadgroup float staged[32];
  staged[i + 1] = 1.0f;
  out[i] = staged[i];
}

kernel void threadgroup_memory_exceeded(device float* out [[buffer(0)]],
                                        uint i [[thread_position_in_grid]]) {
  threadgroup float a[5000];
  threadgroup float b[4000];
  a[i] = 1.0f;
  b[i] = a[i];
  out[i] = b[i];
}

kernel void argument_past_end(device float* out [[buffer(0)]],
                              threadgroup float* staged [[threadgroup(0)]],
                              uint i [[thread_position_in_grid]]) {
  staged[i] = 1.0f;
  out[i] = staged[i];
}

struct Params {
  uint n;
  uint pad[7];
};

constant bool has_scale [[function_constant(0)]];
constant float scale [[function_constant(1)]];
constant bool scales_twice = has_scale && scale > 1.0f;

float scaled(float x) { return has_scale ? x * scale * (scales_twice ? scale : 1.0f) : x; }

kernel void needs_constants(device float* out [[buffer(0)]], constant Params& p [[buffer(1)]],
                            const device float* bias [[buffer(2), function_constant(has_scale)]],
                            uint i [[thread_position_in_grid]]) {
  if (i < p.n) out[i] = scaled(out[i]) + (has_scale ? bias[i] : 0.0f);
}

// Reads the buffer whether or not it is there.
kernel void reads_absent_buffer(device float* out [[buffer(0)]],
                                const device float* bias
                                [[buffer(1), function_constant(has_scale)]],
                                uint i [[thread_position_in_grid]]) {
  out[i] = bias[i];
}
