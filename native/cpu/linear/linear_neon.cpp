// Sixteen lanes with Armv8.2 dot products: four registers each.
#include "cpu/linear/kernels.hpp"

#if defined(__aarch64__)
#include <arm_neon.h>

#include <utility>

namespace pamx::cpu::neon {

struct F {
  float32x4_t v[4];
};
struct I {
  int32x4_t v[4];
};
struct B {
  uint8x16_t v[4];
};

// 32 registers of 4 floats.
constexpr int kExactRows = 6, kExactPanels = 1, kExactSums = 2;
constexpr bool kOneByOne = false;

template <typename Op>
static inline __attribute__((always_inline)) F each(Op&& op) {
  return {{op(0), op(1), op(2), op(3)}};
}

static inline F splat(float x) {
  return each([&](int) { return vdupq_n_f32(x); });
}
static inline F load(const float* p) {
  return each([&](int i) { return vld1q_f32(p + 4 * i); });
}
static inline void store(float* p, F a) {
  for (int i = 0; i < 4; ++i) vst1q_f32(p + 4 * i, a.v[i]);
}
static inline F add(F a, F b) {
  return each([&](int i) { return vaddq_f32(a.v[i], b.v[i]); });
}
static inline F mul(F a, F b) {
  return each([&](int i) { return vmulq_f32(a.v[i], b.v[i]); });
}
static inline F max(F a, F b) {
  return each([&](int i) { return vmaxq_f32(a.v[i], b.v[i]); });
}
static inline F abs(F a) {
  return each([&](int i) { return vabsq_f32(a.v[i]); });
}
static inline F fma(F a, F b, F c) {
  return each([&](int i) { return vfmaq_f32(c.v[i], a.v[i], b.v[i]); });
}
static inline float fma1(float a, float b, float c) { return __builtin_fmaf(a, b, c); }
static inline F round(F a) {
  return each([&](int i) { return vrndnq_f32(a.v[i]); });
}
static inline float max_of(F a) {
  return vmaxvq_f32(vmaxq_f32(vmaxq_f32(a.v[0], a.v[1]), vmaxq_f32(a.v[2], a.v[3])));
}
static inline float sum_of(F a) {
  return vaddvq_f32(vaddq_f32(vaddq_f32(a.v[0], a.v[1]), vaddq_f32(a.v[2], a.v[3])));
}

static inline F load_float16(const uint16_t* p) {
  return each([&](int i) { return vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(p + 4 * i))); });
}
static inline F load_bfloat16(const uint16_t* p) {
  return each([&](int i) { return vreinterpretq_f32_u32(vshll_n_u16(vld1_u16(p + 4 * i), 16)); });
}
static inline void store_int8(int8_t* p, F a, F b) {
  const auto halves = [](F x, int i) {
    return vcombine_s16(vqmovn_s32(vcvtnq_s32_f32(x.v[i])), vqmovn_s32(vcvtnq_s32_f32(x.v[i + 1])));
  };
  vst1q_s8(p, vcombine_s8(vqmovn_s16(halves(a, 0)), vqmovn_s16(halves(a, 2))));
  vst1q_s8(p + 16, vcombine_s8(vqmovn_s16(halves(b, 0)), vqmovn_s16(halves(b, 2))));
}

static inline B load_bytes(const uint8_t* p) {
  return {{vld1q_u8(p), vld1q_u8(p + 16), vld1q_u8(p + 32), vld1q_u8(p + 48)}};
}
static inline B bytes(int x) {
  const uint8x16_t v = vdupq_n_u8(static_cast<uint8_t>(x));
  return {{v, v, v, v}};
}
static inline B and_bytes(B a, B b) {
  for (int i = 0; i < 4; ++i) a.v[i] = vandq_u8(a.v[i], b.v[i]);
  return a;
}
static inline B or_bytes(B a, B b) {
  for (int i = 0; i < 4; ++i) a.v[i] = vorrq_u8(a.v[i], b.v[i]);
  return a;
}
// Each byte's bits N to the right (left when negative).
template <int N>
static inline B shift(B a) {
  for (int i = 0; i < 4; ++i) {
    if constexpr (N > 0) a.v[i] = vshrq_n_u8(a.v[i], N);
    if constexpr (N < 0) a.v[i] = vshlq_n_u8(a.v[i], -N);
  }
  return a;
}
// Byte j of each lane as a float in q[j].
static inline void spread(B a, F* q) {
  const uint32x4_t byte = vdupq_n_u32(255);
  for (int i = 0; i < 4; ++i) {
    const uint32x4_t four = vreinterpretq_u32_u8(a.v[i]);
    q[0].v[i] = vcvtq_f32_u32(vandq_u32(four, byte));
    q[1].v[i] = vcvtq_f32_u32(vandq_u32(vshrq_n_u32(four, 8), byte));
    q[2].v[i] = vcvtq_f32_u32(vandq_u32(vshrq_n_u32(four, 16), byte));
    q[3].v[i] = vcvtq_f32_u32(vshrq_n_u32(four, 24));
  }
}

// sdot wants signed bytes: 8 bit weights go in as q - 128, and 128 times the activations' sum is
// added at the end.
template <int BITS>
static inline B for_dot(B a) {
  if constexpr (BITS == 8) {
    for (int i = 0; i < 4; ++i) a.v[i] = veorq_u8(a.v[i], vdupq_n_u8(128));
  }
  return a;
}
template <int BITS>
static inline I unit_dot(const B* w, const int8_t* x) {
  const int8x16_t first = vld1q_s8(x), second = vld1q_s8(x + 16);
  I dot;
  for (int i = 0; i < 4; ++i) {
    int32x4_t sum = vdupq_n_s32(0);
    sum = vdotq_laneq_s32(sum, vreinterpretq_s8_u8(w[0].v[i]), first, 0);
    sum = vdotq_laneq_s32(sum, vreinterpretq_s8_u8(w[1].v[i]), first, 1);
    sum = vdotq_laneq_s32(sum, vreinterpretq_s8_u8(w[2].v[i]), first, 2);
    sum = vdotq_laneq_s32(sum, vreinterpretq_s8_u8(w[3].v[i]), first, 3);
    sum = vdotq_laneq_s32(sum, vreinterpretq_s8_u8(w[4].v[i]), second, 0);
    sum = vdotq_laneq_s32(sum, vreinterpretq_s8_u8(w[5].v[i]), second, 1);
    sum = vdotq_laneq_s32(sum, vreinterpretq_s8_u8(w[6].v[i]), second, 2);
    sum = vdotq_laneq_s32(sum, vreinterpretq_s8_u8(w[7].v[i]), second, 3);
    dot.v[i] = sum;
  }
  return dot;
}
template <int BITS>
static inline I correct_dot(I dot, int32_t total) {
  if constexpr (BITS == 8) {
    for (int i = 0; i < 4; ++i) dot.v[i] = vaddq_s32(dot.v[i], vdupq_n_s32(128 * total));
  }
  return dot;
}
static inline I two_digits(I high, I low) {
  for (int i = 0; i < 4; ++i) low.v[i] = vaddq_s32(low.v[i], vshlq_n_s32(high.v[i], 7));
  return low;
}
static inline F to_float(I a) {
  return each([&](int i) { return vcvtq_f32_s32(a.v[i]); });
}

template <int LINES>
static inline void prefetch(const uint8_t* p) {
  constexpr int kAhead = 2048;
  for (int i = 0; i < LINES; ++i) __builtin_prefetch(p + kAhead + 64 * i);
}

// Lanes first: the kernel is written in their terms.
#include "cpu/linear/kernel.hpp"

}  // namespace pamx::cpu::neon
#endif
