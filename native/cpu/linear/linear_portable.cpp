// Sixteen lanes in plain C++, for every other processor.
#include <utility>

#include "cpu/linear/kernels.hpp"

namespace pamx::cpu::portable {

namespace scalar {
#include "cpu/isa/simd.hpp"
}

struct F {
  float v[16];
};
struct I {
  int32_t v[16];
};
struct B {
  uint8_t v[64];
};

constexpr int kExactRows = 1, kExactPanels = 1, kExactSums = 1;
constexpr bool kOneByOne = true;

template <typename Op>
static inline F each(Op&& op) {
  F r;
  for (int i = 0; i < 16; ++i) r.v[i] = op(i);
  return r;
}

static inline F splat(float x) {
  return each([&](int) { return x; });
}
static inline F load(const float* p) {
  return each([&](int i) { return p[i]; });
}
static inline void store(float* p, F a) {
  for (int i = 0; i < 16; ++i) p[i] = a.v[i];
}
static inline F add(F a, F b) {
  return each([&](int i) { return a.v[i] + b.v[i]; });
}
static inline F mul(F a, F b) {
  return each([&](int i) { return a.v[i] * b.v[i]; });
}
static inline F max(F a, F b) {
  return each([&](int i) { return a.v[i] > b.v[i] ? a.v[i] : b.v[i]; });
}
static inline F abs(F a) {
  return each([&](int i) { return __builtin_fabsf(a.v[i]); });
}
static inline float fma1(float a, float b, float c) { return __builtin_fmaf(a, b, c); }
static inline F fma(F a, F b, F c) {
  return each([&](int i) { return fma1(a.v[i], b.v[i], c.v[i]); });
}
static inline F round(F a) {
  return each([&](int i) { return __builtin_rintf(a.v[i]); });
}
static inline float max_of(F a) {
  float r = a.v[0];
  for (int i = 1; i < 16; ++i) r = r > a.v[i] ? r : a.v[i];
  return r;
}
static inline float sum_of(F a) {
  float r = 0.0f;
  for (int i = 0; i < 16; ++i) r += a.v[i];
  return r;
}

static inline F load_float16(const uint16_t* p) {
  return each([&](int i) { return scalar::float16_to_float(p[i]); });
}
static inline F load_bfloat16(const uint16_t* p) {
  return each([&](int i) {
    const uint32_t bits = static_cast<uint32_t>(p[i]) << 16;
    float f;
    __builtin_memcpy(&f, &bits, 4);
    return f;
  });
}
static inline void store_int8(int8_t* p, F a, F b) {
  for (int i = 0; i < 16; ++i) {
    p[i] = static_cast<int8_t>(a.v[i]);
    p[16 + i] = static_cast<int8_t>(b.v[i]);
  }
}

static inline B load_bytes(const uint8_t* p) {
  B r;
  __builtin_memcpy(r.v, p, 64);
  return r;
}
static inline B bytes(int x) {
  B r;
  __builtin_memset(r.v, x, 64);
  return r;
}
static inline B and_bytes(B a, B b) {
  for (int i = 0; i < 64; ++i) a.v[i] &= b.v[i];
  return a;
}
static inline B or_bytes(B a, B b) {
  for (int i = 0; i < 64; ++i) a.v[i] |= b.v[i];
  return a;
}
// Each byte's bits N to the right (left when negative).
template <int N>
static inline B shift(B a) {
  for (int i = 0; i < 64; ++i) {
    a.v[i] = static_cast<uint8_t>(N >= 0 ? a.v[i] >> (N & 7) : a.v[i] << (-N & 7));
  }
  return a;
}
// Byte j of each lane as a float in q[j]. Not inline, like dot_of_bytes: eight copies of their
// loops in each of the kernel's instances take a compiler long and save nothing.
static __attribute__((noinline)) void spread(B a, F* q) {
  for (int j = 0; j < 4; ++j) {
    for (int i = 0; i < 16; ++i) q[j].v[i] = static_cast<float>(a.v[4 * i + j]);
  }
}

template <int BITS>
static inline B for_dot(B a) {
  return a;
}
static __attribute__((noinline)) I dot_of_bytes(const B* w, const int8_t* x) {
  I dot{};
  for (int v = 0; v < 8; ++v) {
    for (int i = 0; i < 16; ++i) {
      for (int j = 0; j < 4; ++j) dot.v[i] += w[v].v[4 * i + j] * x[4 * v + j];
    }
  }
  return dot;
}
template <int BITS>
static inline I unit_dot(const B* w, const int8_t* x) {
  return dot_of_bytes(w, x);
}
template <int BITS>
static inline I correct_dot(I dot, int32_t) {
  return dot;
}
static inline I two_digits(I high, I low) {
  for (int i = 0; i < 16; ++i) low.v[i] += high.v[i] * 128;
  return low;
}
static inline F to_float(I a) {
  return each([&](int i) { return static_cast<float>(a.v[i]); });
}

template <int LINES>
static inline void prefetch(const uint8_t*) {}

// Nothing is kept in registers here, so the compiler may inline as it likes.
#define PAMX_INLINE static inline
// Lanes first: the kernel is written in their terms.
#include "cpu/linear/kernel.hpp"

}  // namespace pamx::cpu::portable
