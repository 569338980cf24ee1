// One kernel for each part of the language's library: test_softmetal.py.
#include <metal_atomic>
#include <metal_math>
#include <metal_simdgroup>
#include <metal_simdgroup_matrix>
#include <metal_stdlib>

using namespace metal;

// ---- conversions ------------------------------------------------------------------------------

kernel void round_to(const device float* in [[buffer(0)]], device half* halves [[buffer(1)]],
                     device bfloat* bfloats [[buffer(2)]], uint i [[thread_position_in_grid]]) {
  halves[i] = half(in[i]);
  bfloats[i] = bfloat(in[i]);
}

kernel void widen(const device half* halves [[buffer(0)]], const device bfloat* bfloats [[buffer(1)]],
                  device float2* out [[buffer(2)]], uint i [[thread_position_in_grid]]) {
  out[i] = float2(halves[i], bfloats[i]);
}

// Every half operation rounds: (a * b) + c in two steps, and as one.
kernel void half_arithmetic(const device half4* in [[buffer(0)]], device half4* out [[buffer(1)]],
                            uint i [[thread_position_in_grid]]) {
  const half4 v = in[i];
  out[i] = half4(v.x * v.y + v.z, fma(v.x, v.y, v.z), v.x - v.y, v.x / v.y);
}

kernel void bfloat_vectors(const device bfloat4* in [[buffer(0)]], device bfloat4* out [[buffer(1)]],
                           uint i [[thread_position_in_grid]]) {
  const bfloat4 v = in[i];
  out[i] = bfloat4(float4(v) * 2.0f).wzyx + v;
}

// ---- vectors ----------------------------------------------------------------------------------

kernel void swizzles(const device float4* in [[buffer(0)]], device float4* out [[buffer(1)]],
                     uint i [[thread_position_in_grid]]) {
  float4 v = in[i];
  out[6 * i] = v.wzyx;
  out[6 * i + 1] = float4(v.xx, v.yz * 2.0f);
  v.zw = v.xy;
  out[6 * i + 2] = v;
  v.yx += float2(1.0f, 2.0f);
  out[6 * i + 3] = v;
  out[6 * i + 4] = float4(dot(v.xyz, v.zyx), length(v.xy), -v.w, v.rgba[2]);
  out[6 * i + 5] = float4(as_type<float>(as_type<uint>(v.x)), max(v.xy, v.zw), v[3]);
}

kernel void integers(const device int4* in [[buffer(0)]], device int4* out [[buffer(1)]],
                     uint i [[thread_position_in_grid]]) {
  const int4 v = in[i];
  out[4 * i] = (v + 3) * v - (v << 2) + (v & 7) + (v | 1) + (v ^ v.wzyx) + ~v;
  out[4 * i + 1] = select(min(v, v.yxwz), clamp(v, int4(-5), int4(5)), v > v.yxwz);
  out[4 * i + 2] = int4(popcount(v.x), clz(v.x), ctz(v.x), int(popcount(uchar(v.x))));
  out[4 * i + 3] = int4(any(v > 0), all(v > 0), mulhi(v.x, v.y), abs(v.z));
}

struct Packed {
  packed_float3 a;
  float b;
  packed_half2 c;
};

kernel void packed(const device Packed* in [[buffer(0)]], device float4* out [[buffer(1)]],
                   uint i [[thread_position_in_grid]]) {
  const float3 a = in[i].a;
  const half2 c = in[i].c;
  out[i] = float4(a.zy, in[i].b + a[0], c.x + c.y);
}

// ---- functions --------------------------------------------------------------------------------

kernel void functions(const device float* in [[buffer(0)]], device float* out [[buffer(1)]],
                      uint i [[thread_position_in_grid]]) {
  const float x = in[i];
  device float* o = out + 24 * i;
  o[0] = exp(x);
  o[1] = exp2(x);
  o[2] = fast::exp2(x);
  o[3] = precise::exp2(x);
  o[4] = log(fabs(x));
  o[5] = log2(fabs(x));
  o[6] = tanh(x);
  o[7] = sin(x);
  o[8] = cos(x);
  o[9] = sqrt(fabs(x));
  o[10] = rsqrt(fabs(x));
  o[11] = floor(x);
  o[12] = ceil(x);
  o[13] = rint(x);
  o[14] = round(x);
  o[15] = trunc(x);
  o[16] = pow(fabs(x), 1.5f);
  o[17] = fmod(x, 0.7f);
  o[18] = copysign(2.0f, x);
  o[19] = sign(x);
  o[20] = float(half(exp(half(x))));
  o[21] = precise::tanh(float2(x, 0.0f)).x;
  o[22] = 1.0 / 3.0;  // a float's third: Metal has no double
  o[23] = max(NAN, x) + min(x, NAN) + isnan(x) + isinf(x);
}

// ---- simdgroups -------------------------------------------------------------------------------

template <typename T>
[[kernel]] void simd(const device T* in [[buffer(0)]], device T* out [[buffer(1)]],
                     uint i [[thread_position_in_grid]], ushort lane [[thread_index_in_simdgroup]]) {
  const T x = in[i];
  device T* o = out + 20 * i;
  o[0] = simd_sum(x);
  o[1] = simd_max(x);
  o[2] = simd_min(x);
  o[3] = simd_prefix_inclusive_sum(x);
  o[4] = simd_prefix_exclusive_sum(x);
  o[5] = simd_shuffle(x, ushort(31 - lane));
  o[6] = simd_shuffle_xor(x, 5);
  o[7] = simd_shuffle_up(x, 3);
  o[8] = simd_shuffle_down(x, 3);
  o[9] = simd_shuffle_and_fill_up(x, T(-x), 3);
  o[10] = simd_shuffle_and_fill_down(x, T(-x), 3);
  o[11] = simd_broadcast(x, 7);
  o[12] = simd_broadcast_first(x);
  o[13] = quad_sum(x);
  o[14] = quad_max(x);
  o[15] = quad_shuffle_xor(x, 1);
  o[16] = quad_broadcast(x, 2);
  o[17] = simd_shuffle_rotate_up(x, 2);
  o[18] = simd_shuffle_rotate_down(x, 2);
  o[19] = T(simd_any(x > T(8)) * 2 + simd_all(x > T(8)));
}
template [[host_name("simd_float")]] [[kernel]] decltype(simd<float>) simd<float>;
template [[host_name("simd_half")]] [[kernel]] decltype(simd<half>) simd<half>;
template [[host_name("simd_int")]] [[kernel]] void simd<int>(const device int*, device int*, uint,
                                                            ushort);

kernel void ballot(device uint2* out [[buffer(0)]], uint i [[thread_position_in_grid]]) {
  const simd_vote vote = simd_ballot((i & 3) == 1);
  const float4 sum = simd_sum(float4(i, 1, 0, i * i));
  out[i] = uint2(uint((simd_vote::vote_t)vote), uint(sum.x + sum.y));
}

// ---- threadgroups and grids -------------------------------------------------------------------

// Reverses a threadgroup's values through memory of a size that the template gives.
template <int N>
[[kernel]] void reverse(device int* values [[buffer(0)]], uint i [[thread_index_in_threadgroup]],
                        uint group [[threadgroup_position_in_grid]]) {
  threadgroup int staged[N][2];
  constexpr int kRow = N;
  staged[i][0] = values[group * kRow + i];
  staged[i][1] = 0;
  threadgroup_barrier(mem_flags::mem_threadgroup);
  values[group * kRow + i] = staged[kRow - 1 - i][0];
}
template [[host_name("reverse_64")]] [[kernel]] decltype(reverse<64>) reverse<64>;
template [[host_name("reverse_40")]] [[kernel]] decltype(reverse<40>) reverse<40>;

kernel void positions(device uint* out [[buffer(0)]], uint3 thread_ [[thread_position_in_grid]],
                      uint3 group [[threadgroup_position_in_grid]],
                      ushort3 local [[thread_position_in_threadgroup]],
                      uint index [[thread_index_in_threadgroup]],
                      ushort lane [[thread_index_in_simdgroup]],
                      uint simdgroup [[simdgroup_index_in_threadgroup]],
                      uint3 size [[threads_per_threadgroup]], uint2 grid [[threads_per_grid]],
                      uint3 groups [[threadgroups_per_grid]],
                      uint simdgroups [[simdgroups_per_threadgroup]],
                      uint width [[threads_per_simdgroup]]) {
  device uint* o = out + 16 * (thread_.x + grid.x * (thread_.y + grid.y * thread_.z));
  o[0] = thread_.x;
  o[1] = thread_.y;
  o[2] = thread_.z;
  o[3] = group.x;
  o[4] = group.y;
  o[5] = group.z;
  o[6] = local.x;
  o[7] = local.y;
  o[8] = local.z;
  o[9] = index;
  o[10] = lane;
  o[11] = simdgroup;
  o[12] = size.x * 100 + size.y * 10 + size.z;
  o[13] = groups.x * 100 + groups.y * 10 + groups.z;
  o[14] = simdgroups;
  o[15] = width;
}

kernel void count(device atomic_uint* total [[buffer(0)]], device atomic_int* top [[buffer(1)]],
                  uint i [[thread_position_in_grid]]) {
  threadgroup atomic_uint mine;
  if (i % 64 == 0) atomic_store_explicit(&mine, 0u, memory_order_relaxed);
  threadgroup_barrier(mem_flags::mem_threadgroup);
  atomic_fetch_add_explicit(&mine, i, memory_order_relaxed);
  atomic_fetch_max_explicit(top, int(i), memory_order_relaxed);
  threadgroup_barrier(mem_flags::mem_threadgroup);
  if (i % 64 == 0)
    atomic_fetch_add_explicit(total, atomic_load_explicit(&mine, memory_order_relaxed),
                              memory_order_relaxed);
}

namespace inner {
enum Index { kValues = 2 };
constant constexpr int kStep = 3;
constant int kTable[4] = {1, 2, 4, 8};

template <typename T>
struct Limits {
  static constexpr constant T low = numeric_limits<T>::lowest();
};

kernel void in_a_namespace(device float* out [[buffer(kValues)]],
                           uint i [[thread_position_in_grid]]) {
  float sum = 0.0f;
  _Pragma("clang loop unroll(full)") for (int k = 0; k < kStep; ++k) sum += kTable[k];
#pragma unroll
  for (int k = 0; k < 2; ++k) sum += k;
  out[i] = max(Limits<float>::low, sum);
}

template <typename T>
[[kernel]] void instantiated_from_outside(device T* out [[buffer(kValues)]],
                                          uint i [[thread_position_in_grid]]) {
  out[i] = T(i * kStep);
}
}  // namespace inner

// ---- matrices ---------------------------------------------------------------------------------

// d = a b + c, 8x8, of row-major matrices with rows of 12.
template <typename A, typename B, typename D>
[[kernel]] void multiply(const device A* a [[buffer(0)]], const device B* b [[buffer(1)]],
                         const device D* c [[buffer(2)]], device D* d [[buffer(3)]],
                         constant bool* transpose [[buffer(4)]]) {
  simdgroup_matrix<A, 8, 8> ma;
  simdgroup_matrix<B, 8, 8> mb;
  simdgroup_matrix<D, 8, 8> mc, md;
  simdgroup_load(ma, a, 12, ulong2(2, 1), transpose[0]);
  simdgroup_load(mb, b, 12, ulong2(0, 0), transpose[1]);
  simdgroup_load(mc, c, 12);
  simdgroup_multiply_accumulate(md, ma, mb, mc);
  simdgroup_store(md, d, 12, ulong2(1, 2), transpose[2]);
}
template [[host_name("multiply_float")]] [[kernel]] decltype(multiply<float, float, float>)
    multiply<float, float, float>;
template [[host_name("multiply_half")]] [[kernel]] decltype(multiply<half, half, float>)
    multiply<half, half, float>;
template [[host_name("multiply_bfloat")]] [[kernel]] decltype(multiply<bfloat, bfloat, float>)
    multiply<bfloat, bfloat, float>;

// What each lane holds of a matrix, and a product of matrices made in registers.
kernel void matrix_elements(const device float* in [[buffer(0)]], device float2* out [[buffer(1)]],
                            device float* product [[buffer(2)]],
                            ushort lane [[thread_index_in_simdgroup]]) {
  simdgroup_float8x8 m;
  simdgroup_load(m, in);
  out[lane] = m.thread_elements();
  simdgroup_float8x8 two = make_filled_simdgroup_matrix<float, 8, 8>(2.0f);
  simdgroup_float8x8 diagonal(3.0f), r;
  simdgroup_multiply(r, m, two);
  reinterpret_cast<thread float2&>(r.thread_elements()) += float2(1.0f);
  r = r * diagonal;
  simdgroup_store(r, product);
}

// ---- speed ------------------------------------------------------------------------------------

// The shape of a decode kernel: a token's scores by simd_sum, its values added up.
kernel void decode(const device float4* q [[buffer(0)]], const device float4* k [[buffer(1)]],
                   const device float4* v [[buffer(2)]], device float4* out [[buffer(3)]],
                   constant uint& tokens [[buffer(4)]], uint head [[threadgroup_position_in_grid]],
                   uint lane [[thread_index_in_simdgroup]]) {
  float4 sum = 0.0f;
  float top = -INFINITY, total = 0.0f;
  for (uint t = 0; t < tokens; ++t) {
    const float s = simd_sum(dot(q[head * 32 + lane], k[t * 32 + lane]));
    const float next = max(top, s), shrink = exp(top - next), p = exp(s - next);
    total = total * shrink + p;
    sum = sum * shrink + p * v[t * 32 + lane];
    top = next;
  }
  out[head * 32 + lane] = sum / total;
}
