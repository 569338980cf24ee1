// Row kernels for one instruction set: plain loops that the compiler makes vectors of.
//
// Included by one source file per instruction set, inside its namespace; see cpu/isa/simd.hpp.

// ---- reading and writing rows -------------------------------------------------------------------

template <typename Element, typename Convert>
static void gather(const void* in, int64_t stride, int32_t n, float* out, const Convert& convert) {
  const auto* from = static_cast<const Element*>(in);
  int32_t i = 0;
  if (stride == 1) {
    for (; i + 8 <= n; i += 8) store(out + i, convert(from + i));
  }
  // The rest, and rows that do not lie together, eight at a time through a buffer.
  for (; i < n; i += 8) {
    const int32_t count = n - i < 8 ? n - i : 8;
    Element some[8] = {};
    float wide[8];
    for (int32_t j = 0; j < count; ++j) some[j] = from[(i + j) * stride];
    store(wide, convert(some));
    for (int32_t j = 0; j < count; ++j) out[i + j] = wide[j];
  }
}

static void to_float(const void* in, Dtype dtype, int64_t stride, int32_t n, float* out) {
  switch (dtype) {
    case Dtype::float32:
      return gather<float>(in, stride, n, out, [](const float* p) { return load(p); });
    case Dtype::float16:
      return gather<uint16_t>(in, stride, n, out,
                              [](const uint16_t* p) { return load_float16(p); });
    case Dtype::bfloat16:
      return gather<uint16_t>(in, stride, n, out,
                              [](const uint16_t* p) { return load_bfloat16(p); });
  }
}

template <typename Store8>
static void scatter(const float* in, int32_t n, uint16_t* out, const Store8& store8) {
  int32_t i = 0;
  for (; i + 8 <= n; i += 8) store8(out + i, load(in + i));
  if (i == n) return;
  float rest[8] = {};
  uint16_t narrow[8];
  for (int32_t j = 0; i + j < n; ++j) rest[j] = in[i + j];
  store8(narrow, load(rest));
  for (int32_t j = 0; i + j < n; ++j) out[i + j] = narrow[j];
}

static void from_float(const float* in, int32_t n, Dtype dtype, void* out) {
  auto* narrow = static_cast<uint16_t*>(out);
  switch (dtype) {
    case Dtype::float32:
      __builtin_memmove(out, in, sizeof(float) * static_cast<std::size_t>(n));
      return;
    case Dtype::float16:
      return scatter(in, n, narrow, [](uint16_t* p, F8 a) { store_float16(p, a); });
    case Dtype::bfloat16:
      return scatter(in, n, narrow, [](uint16_t* p, F8 a) { store_bfloat16(p, a); });
  }
}

// ---- norms --------------------------------------------------------------------------------------

// Sums what `accumulate` adds to a lane, over sixteen lanes: element i in lane i % 16; then the
// elements past the last sixteen one by one.
template <typename Accumulate>
static float lane_sum(const float* x, int32_t n, const Accumulate& accumulate) {
  Wide lanes = Wide::splat(0.0f);
  int32_t i = 0;
  for (; i + 16 <= n; i += 16) lanes = accumulate(Wide::load(x + i), lanes);
  float total = sum(lanes);
  if (i == n) return total;
  float rest[16] = {};
  for (int32_t j = 0; i + j < n; ++j) rest[j] = x[i + j];
  store(rest, accumulate(Wide::load(rest), Wide::splat(0.0f)));
  for (int32_t j = 0; i + j < n; ++j) total += rest[j];
  return total;
}

static void rms_norm(const float* x, const float* weight, float eps, int32_t n, float* out) {
  const float squares = lane_sum(x, n, [](Wide v, Wide acc) { return fma(v, v, acc); });
  const float scale = 1.0f / __builtin_sqrtf(squares / static_cast<float>(n) + eps);
  if (weight) {
    for (int32_t i = 0; i < n; ++i) out[i] = x[i] * scale * weight[i];
  } else {
    for (int32_t i = 0; i < n; ++i) out[i] = x[i] * scale;
  }
}

static void layer_norm(const float* x, const float* weight, const float* bias, float eps, int32_t n,
                       float* out) {
  const auto count = static_cast<float>(n);
  const float mean = lane_sum(x, n, [](Wide v, Wide acc) { return add(v, acc); }) / count;
  const Wide centre = Wide::splat(mean);
  const float squares = lane_sum(x, n, [centre](Wide v, Wide acc) {
    const Wide d = sub(v, centre);
    return fma(d, d, acc);
  });
  const float scale = 1.0f / __builtin_sqrtf(squares / count + eps);
  for (int32_t i = 0; i < n; ++i) out[i] = (x[i] - mean) * scale;
  if (weight) {
    for (int32_t i = 0; i < n; ++i) out[i] *= weight[i];
  }
  if (bias) {
    for (int32_t i = 0; i < n; ++i) out[i] += bias[i];
  }
}

// ---- rotary positions ---------------------------------------------------------------------------

static void rotate(float* __restrict x, const float* __restrict cosines,
                   const float* __restrict sines, int32_t pairs, bool traditional) {
  if (traditional) {
    for (int32_t i = 0; i < pairs; ++i) {
      const float a = x[2 * i], b = x[2 * i + 1];
      x[2 * i] = a * cosines[i] - b * sines[i];
      x[2 * i + 1] = a * sines[i] + b * cosines[i];
    }
  } else {
    float* __restrict y = x + pairs;
    for (int32_t i = 0; i < pairs; ++i) {
      const float a = x[i], b = y[i];
      x[i] = a * cosines[i] - b * sines[i];
      y[i] = a * sines[i] + b * cosines[i];
    }
  }
}

// ---- gates --------------------------------------------------------------------------------------

// e^x for x <= 0; 0 below 2^-126, and some finite number for NaN: the callers multiply the result
// by what was NaN. The polynomial is a relative minimax fit on half an octave around 0 with its
// first two terms fixed at 1, made with iteratively reweighted least squares.
static inline float exp_nonpositive(float x) {
  const float y = x * 1.44269504088896340736f;
  const float z = y > -126.0f ? y : -126.0f;
  const float n = (z + 12582912.0f) - 12582912.0f;
  // x - n * ln 2, whose first part has few enough bits for an exact product.
  const float f = (x > -87.5f ? x : -87.5f) - n * 0.693145751953125f - n * 1.42860682030941723e-06f;
  float p = 0.0013814598f;
  p = p * f + 0.008368718f;
  p = p * f + 0.041668389f;
  p = p * f + 0.16666521f;
  p = p * f + 0.49999994f;
  p = p * f + 1.0f;
  p = p * f + 1.0f;
  const auto bits = static_cast<uint32_t>(static_cast<int32_t>(n) + 127) << 23;
  return y < -126.0f ? 0.0f : p * __builtin_bit_cast(float, bits);
}

static inline float sigmoid(float x) {
  const float e = exp_nonpositive(x < 0.0f ? x : -x);
  return (x < 0.0f ? e : 1.0f) / (1.0f + e);
}

// Phi(x), the normal distribution: erfc(z) = e^(-z^2) * t * P(t) with t = 1 / (1 + 0.4 z). P is a
// relative minimax fit on z from 0 to 9.4, made with iteratively reweighted least squares; in
// float32 the result's error is below 2e-7.
static inline float normal_cdf(float x) {
  const float z = (x < 0.0f ? -x : x) * 0.70710678118654752440f;
  const float t = 1.0f / (1.0f + 0.4f * z);
  float p = 0.040054455f;
  p = p * t - 0.13441919f;
  p = p * t + 0.07163154f;
  p = p * t + 0.102305844f;
  p = p * t + 0.06969185f;
  p = p * t + 0.19775441f;
  p = p * t + 0.20075105f;
  p = p * t + 0.2266056f;
  p = p * t + 0.22562449f;
  const float half_erfc = 0.5f * p * t * exp_nonpositive(-z * z);
  return x < 0.0f ? half_erfc : 1.0f - half_erfc;
}

template <typename Act>
static void gate_row(const float* gate, const float* up, int32_t n, float* out, const Act& act) {
  if (up) {
    for (int32_t i = 0; i < n; ++i) out[i] = act(gate[i]) * up[i];
  } else {
    for (int32_t i = 0; i < n; ++i) out[i] = act(gate[i]);
  }
}

static void gate(Gate kind, const float* in, const float* up, int32_t n, float* out) {
  switch (kind) {
    case Gate::silu:
      return gate_row(in, up, n, out, [](float x) { return x * sigmoid(x); });
    case Gate::gelu:
      return gate_row(in, up, n, out, [](float x) { return x * normal_cdf(x); });
    case Gate::gelu_tanh:
      // x/2 * (1 + tanh(u)) is x * sigmoid(2u).
      return gate_row(in, up, n, out, [](float x) {
        return x * sigmoid(1.5957691216057308f * (x + 0.044715f * x * x * x));
      });
    case Gate::relu:
      return gate_row(in, up, n, out, [](float x) { return x <= 0.0f ? 0.0f : x; });
  }
}

static void add_scaled(const float* x, float scale, const float* y, int32_t n, float* out) {
  for (int32_t i = 0; i < n; ++i) out[i] = x[i] + scale * y[i];
}
