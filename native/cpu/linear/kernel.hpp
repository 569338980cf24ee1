// Linear layers for one instruction set, written on sixteen lanes: one panel's outputs.
//
// Included by one source file per instruction set, inside its namespace, after that file has
// defined the lanes: F is 16 floats, I 16 int32, B 16 x 4 bytes. It uses no inline function of
// the C++ library (see isa/simd.hpp). Every multiplication that is added to something is an
// explicit fma(), the build forbids the compiler to make others, and an output's sum runs in one
// order whatever the tile: that is what keeps a row's bits independent of its company, and equal
// between instruction sets.
//
// fast:  per unit of 32 inputs an exact int32 dot product of unsigned weights and int8
//        activations; t = sum of scale * dot over a group's units; acc += s * t, then
//        acc += b * (sum of the rounded activations over the group).
// exact: acc += (s * q + b) * x, inputs ascending; dense: acc += w * x.

#define PAMX_INLINE static inline __attribute__((always_inline))

constexpr int32_t kLine = 64;

// f.operator()<0>(), f.operator()<1>(), ...
template <typename Body, int... Is>
PAMX_INLINE void unrolled_in(Body&& body, std::integer_sequence<int, Is...>) {
  (body.template operator()<Is>(), ...);
}
template <int N, typename Body>
PAMX_INLINE void unrolled(Body&& body) {
  unrolled_in(static_cast<Body&&>(body), std::make_integer_sequence<int, N>{});
}

// ---- weights ----------------------------------------------------------------------------------

// Vector v of a unit: the unsigned integers of inputs 4v to 4v + 3. See pack.cpp.
template <int BITS, int V>
PAMX_INLINE B vector_of(const uint8_t* unit) {
  if constexpr (BITS == 8) {
    return load_bytes(unit + V * kLine);
  } else if constexpr (BITS == 4) {
    return and_bytes(shift<V % 2 * 4>(load_bytes(unit + V / 2 * kLine)), bytes(15));
  } else if constexpr (BITS == 2) {
    return and_bytes(shift<V % 4 * 2>(load_bytes(unit + V / 4 * kLine)), bytes(3));
  } else if constexpr (BITS == 3) {
    const B high = shift<V - 2>(load_bytes(unit + 2 * kLine));
    return or_bytes(vector_of<2, V>(unit), and_bytes(high, bytes(4)));
  } else {
    static_assert(BITS == 6);
    const B high = shift<V % 4 * 2 - 4>(load_bytes(unit + (4 + V / 4) * kLine));
    return or_bytes(vector_of<4, V>(unit), and_bytes(high, bytes(0x30)));
  }
}

PAMX_INLINE F load_as(Dtype type, const uint8_t* p, int64_t at) {
  switch (type) {
    case Dtype::float16:
      return load_float16(reinterpret_cast<const uint16_t*>(p) + at);
    case Dtype::bfloat16:
      return load_bfloat16(reinterpret_cast<const uint16_t*>(p) + at);
    default:
      return load(reinterpret_cast<const float*>(p) + at);
  }
}

// A group's scales and biases; moves on to its first unit.
PAMX_INLINE const uint8_t* load_scales(Dtype type, const uint8_t* p, F* s, F* b) {
  *s = load_as(type, p, 0);
  *b = load_as(type, p, kPanel);
  return p + (type == Dtype::float32 ? 2 * kLine : kLine);
}

// ---- fast -------------------------------------------------------------------------------------

static bool quantise(const float* x, int32_t inputs, const Tile& tile, int32_t r) {
  const int32_t units = inputs / kUnit;
  // A maximum may pass over a NaN; zero times NaN or Inf does not.
  F zeros = splat(0.0f), magnitudes = splat(0.0f);
  for (int32_t k = 0; k < inputs; k += 16) {
    const F a = load(x + k);
    zeros = fma(a, splat(0.0f), zeros);
    magnitudes = max(magnitudes, abs(a));
  }
  const bool usable = sum_of(zeros) == 0.0f && max_of(magnitudes) <= 0x1p100f;
  const float range = tile.low ? 16256.0f : 127.0f;  // 127 * 128, or 127
  for (int32_t u = 0; u < units; ++u) {
    const int64_t at = int64_t{u} * tile.rows + r;
    int8_t* digits = tile.digits + at * kUnit;
    const F a = load(x + u * kUnit), b = load(x + u * kUnit + 16);
    const float largest = max_of(max(abs(a), abs(b)));
    // Below 2^-100 the reciprocal could overflow; beside anything a model computes it is zero.
    if (!usable || largest < 0x1p-100f) {
      __builtin_memset(digits, 0, kUnit);
      if (tile.low) __builtin_memset(tile.low + at * kUnit, 0, kUnit);
      tile.scales[at] = 0.0f;
      tile.totals[at] = 0;
      continue;
    }
    const F inverse = splat(range / largest);
    const F qa = round(mul(a, inverse)), qb = round(mul(b, inverse));
    tile.scales[at] = largest / range;
    tile.totals[at] = static_cast<int32_t>(sum_of(add(qa, qb)));  // small integers: exact
    if (!tile.low) {
      store_int8(digits, qa, qb);
      continue;
    }
    const F high_a = round(mul(qa, splat(0x1p-7f))), high_b = round(mul(qb, splat(0x1p-7f)));
    store_int8(digits, high_a, high_b);
    store_int8(tile.low + at * kUnit, fma(high_a, splat(-128.0f), qa),
               fma(high_b, splat(-128.0f), qb));
  }
  return usable;
}

static void sum_groups(int32_t inputs, int32_t group_size, const Tile& tile) {
  const int32_t groups = inputs / group_size, units = group_size / kUnit;
  for (int32_t g = 0; g < groups; ++g) {
    for (int32_t r = 0; r < tile.rows; ++r) {
      float sum = 0.0f;
      for (int32_t u = 0; u < units; ++u) {
        const int64_t at = (int64_t{g} * units + u) * tile.rows + r;
        sum = fma1(tile.scales[at], static_cast<float>(tile.totals[at]), sum);
      }
      tile.sums[int64_t{g} * tile.rows + r] = sum;
    }
  }
}

template <int BITS, bool WIDE, int R>
static void fast_tile(const MatrixFormat& f, const uint8_t* p, const Tile& tile, float* out,
                      int64_t out_stride) {
  const int32_t units = f.group_size / kUnit, groups = f.inputs / f.group_size;
  const Dtype type = f.scale_type;
  const int8_t* digits = tile.digits;
  const int8_t* low = tile.low;
  const float* scales = tile.scales;
  const int32_t* totals = tile.totals;
  const float* sums = tile.sums;
  F acc[R];
  for (int r = 0; r < R; ++r) acc[r] = splat(0.0f);
  for (int32_t g = 0; g < groups; ++g) {
    F s, b, t[R];
    if constexpr (R <= 4) prefetch<1>(p);
    p = load_scales(type, p, &s, &b);
    for (int r = 0; r < R; ++r) t[r] = splat(0.0f);
    for (int32_t u = 0; u < units; ++u) {
      if constexpr (R <= 4) prefetch<BITS>(p);
      B w[8];
      unrolled<8>([&]<int V>() { w[V] = for_dot<BITS>(vector_of<BITS, V>(p)); });
      for (int r = 0; r < R; ++r) {
        I dot = unit_dot<BITS>(w, digits + r * kUnit);
        if constexpr (WIDE) dot = two_digits(dot, unit_dot<BITS>(w, low + r * kUnit));
        dot = correct_dot<BITS>(dot, totals[r]);
        t[r] = fma(to_float(dot), splat(scales[r]), t[r]);
      }
      p += BITS * kLine;
      digits += R * kUnit;
      if constexpr (WIDE) low += R * kUnit;
      scales += R;
      totals += R;
    }
    for (int r = 0; r < R; ++r) {
      acc[r] = fma(s, t[r], acc[r]);
      acc[r] = fma(b, splat(sums[r]), acc[r]);
    }
    sums += R;
  }
  for (int r = 0; r < R; ++r) store(out + r * out_stride, acc[r]);
}

template <int BITS, bool WIDE>
static void fast_rows(const MatrixFormat& f, const uint8_t* p, const Tile& tile, float* out,
                      int64_t out_stride) {
  switch (tile.rows) {
    case 8:
      return fast_tile<BITS, WIDE, 8>(f, p, tile, out, out_stride);
    case 4:
      return fast_tile<BITS, WIDE, 4>(f, p, tile, out, out_stride);
    case 2:
      return fast_tile<BITS, WIDE, 2>(f, p, tile, out, out_stride);
    default:
      return fast_tile<BITS, WIDE, 1>(f, p, tile, out, out_stride);
  }
}

template <int BITS>
static void fast_bits(const MatrixFormat& f, const uint8_t* p, const Tile& tile, float* out,
                      int64_t out_stride) {
  if (tile.low) return fast_rows<BITS, true>(f, p, tile, out, out_stride);
  return fast_rows<BITS, false>(f, p, tile, out, out_stride);
}

static void fast(const Matrix& m, int32_t panel, const Tile& tile, float* out, int64_t out_stride) {
  const MatrixFormat& f = m.format;
  const uint8_t* p = m.panels + panel * f.panel_bytes();
  switch (f.bits) {
    case 2:
      return fast_bits<2>(f, p, tile, out, out_stride);
    case 3:
      return fast_bits<3>(f, p, tile, out, out_stride);
    case 4:
      return fast_bits<4>(f, p, tile, out, out_stride);
    case 6:
      return fast_bits<6>(f, p, tile, out, out_stride);
    default:
      return fast_bits<8>(f, p, tile, out, out_stride);
  }
}

// ---- exact ------------------------------------------------------------------------------------

// A piece of a matrix as `exact` walks over it: P panels, R rows, inputs [begin, end).
struct Piece {
  const uint8_t* panels;  // of input `begin`
  int64_t panel_bytes;
  int32_t begin, end;
  int32_t group_size;
  Dtype scale_type;
  const float* x;  // of input 0
  int64_t x_stride;
  float* out;
  int64_t out_stride;
};

template <int R, int P>
PAMX_INLINE void load_sums(const Piece& a, F (&acc)[R][P]) {
  for (int r = 0; r < R; ++r) {
    for (int i = 0; i < P; ++i) {
      acc[r][i] = a.begin == 0 ? splat(0.0f) : load(a.out + r * a.out_stride + i * kPanel);
    }
  }
}

template <int R, int P>
PAMX_INLINE void store_sums(const Piece& a, const F (&acc)[R][P]) {
  for (int r = 0; r < R; ++r) {
    for (int i = 0; i < P; ++i) store(a.out + r * a.out_stride + i * kPanel, acc[r][i]);
  }
}

template <Dtype TYPE, int R, int P>
static void dense_piece(const Piece& a) {
  constexpr int64_t kBytes = kPanel * (TYPE == Dtype::float32 ? 4 : 2);
  F acc[R][P];
  load_sums<R, P>(a, acc);
  const float* x = a.x + a.begin;
  const uint8_t* w = a.panels;
  const int64_t depth = a.end - a.begin;
  for (int64_t k = 0; k < depth; ++k, w += kBytes) {
    F weights[P];
    for (int i = 0; i < P; ++i) {
      if constexpr (R <= 4) prefetch<1>(w + i * a.panel_bytes);
      weights[i] = load_as(TYPE, w + i * a.panel_bytes, 0);
    }
    for (int r = 0; r < R; ++r) {
      const F value = splat(x[r * a.x_stride + k]);
      for (int i = 0; i < P; ++i) acc[r][i] = fma(weights[i], value, acc[r][i]);
    }
  }
  store_sums<R, P>(a, acc);
}

template <int BITS, int R, int P>
static void quantised_piece(const Piece& a) {
  F acc[R][P];
  load_sums<R, P>(a, acc);
  const float* x = a.x;
  const uint8_t* p = a.panels;
  const int64_t header = a.scale_type == Dtype::float32 ? 2 * kLine : kLine;
  for (int32_t k = 0; k < a.end;) {
    F s[P], b[P];
    for (int i = 0; i < P; ++i) {
      prefetch<1>(p + i * a.panel_bytes);
      load_scales(a.scale_type, p + i * a.panel_bytes, &s[i], &b[i]);
    }
    p += header;
    for (int32_t u = 0; u < a.group_size; u += kUnit, k += kUnit, p += BITS * kLine) {
      for (int i = 0; i < P; ++i) prefetch<BITS>(p + i * a.panel_bytes);
      unrolled<8>([&]<int V>() {
        F w[P][4];
        for (int i = 0; i < P; ++i) {
          spread(vector_of<BITS, V>(p + i * a.panel_bytes), w[i]);
          for (int j = 0; j < 4; ++j) w[i][j] = fma(s[i], w[i][j], b[i]);
        }
        for (int j = 0; j < 4; ++j) {
          for (int r = 0; r < R; ++r) {
            const F value = splat(x[r * a.x_stride + k + 4 * V + j]);
            for (int i = 0; i < P; ++i) acc[r][i] = fma(w[i][j], value, acc[r][i]);
          }
        }
      });
    }
  }
  store_sums<R, P>(a, acc);
}

template <int BITS>
static void quantised_to_dense(const uint8_t* p, int32_t depth, int32_t group_size, Dtype type,
                               float* to) {
  for (int32_t k = 0; k < depth;) {
    F s, b;
    p = load_scales(type, p, &s, &b);
    for (int32_t u = 0; u < group_size; u += kUnit, k += kUnit, p += BITS * kLine) {
      unrolled<8>([&]<int V>() {
        F w[4];
        spread(vector_of<BITS, V>(p), w);
        for (int j = 0; j < 4; ++j) store(to + (k + 4 * V + j) * kPanel, fma(s, w[j], b));
      });
    }
  }
}

// Inputs [begin, end) of one panel as float32.
static void to_dense(const MatrixFormat& f, const uint8_t* panel, int32_t begin, int32_t end,
                     float* to) {
  if (f.bits == 0) {
    for (int64_t k = begin; k < end; ++k, to += kPanel) {
      store(to, load_as(f.scale_type, panel, k * kPanel));
    }
    return;
  }
  const int64_t group_bytes = f.scale_bytes() + int64_t{f.group_size} * f.bits * kPanel / 8;
  const uint8_t* p = panel + begin / f.group_size * group_bytes;
  switch (f.bits) {
    case 2:
      return quantised_to_dense<2>(p, end - begin, f.group_size, f.scale_type, to);
    case 3:
      return quantised_to_dense<3>(p, end - begin, f.group_size, f.scale_type, to);
    case 4:
      return quantised_to_dense<4>(p, end - begin, f.group_size, f.scale_type, to);
    case 6:
      return quantised_to_dense<6>(p, end - begin, f.group_size, f.scale_type, to);
    default:
      return quantised_to_dense<8>(p, end - begin, f.group_size, f.scale_type, to);
  }
}

template <int R, int P>
static void piece_of(int32_t bits, const Piece& a) {
  switch (bits) {
    case 2:
      return quantised_piece<2, R, P>(a);
    case 3:
      return quantised_piece<3, R, P>(a);
    case 4:
      return quantised_piece<4, R, P>(a);
    case 6:
      return quantised_piece<6, R, P>(a);
    case 8:
      return quantised_piece<8, R, P>(a);
    default:
      break;
  }
  switch (a.scale_type) {
    case Dtype::float16:
      return dense_piece<Dtype::float16, R, P>(a);
    case Dtype::bfloat16:
      return dense_piece<Dtype::bfloat16, R, P>(a);
    default:
      return dense_piece<Dtype::float32, R, P>(a);
  }
}

// All panels of a piece for R rows, as many at a time as registers allow.
template <int R>
static void panels_of(int32_t bits, Piece a, int32_t panels) {
  constexpr int P = kExactSums / R < 1 ? 1 : kExactSums / R > 4 ? 4 : kExactSums / R;
  int32_t i = 0;
  const auto move = [&](int32_t count) {
    a.panels += count * a.panel_bytes;
    a.out += count * kPanel;
    i += count;
  };
  while (i + P <= panels) {
    piece_of<R, P>(bits, a);
    move(P);
  }
  while (i < panels) {
    piece_of<R, 1>(bits, a);
    move(1);
  }
}

// R rows of float32 weights that all rows of a call share.
template <int R, int P>
static int32_t dense_rows(Piece a, int32_t r, int32_t rows) {
  for (; r + R <= rows; r += R) {
    Piece b = a;
    b.x += r * a.x_stride;
    b.out += r * a.out_stride;
    dense_piece<Dtype::float32, R, P>(b);
  }
  return r;
}

template <int P>
static void dense_block(const Piece& a, int32_t rows) {
  int32_t r = dense_rows<kExactRows, P>(a, 0, rows);
  if constexpr (kExactRows > 4) r = dense_rows<4, P>(a, r, rows);
  r = dense_rows<2, P>(a, r, rows);
  dense_rows<1, P>(a, r, rows);
}

static void exact(const Matrix& m, int32_t panel, int32_t panels, int32_t rows, const float* x,
                  int64_t x_stride, float* out, int64_t out_stride, float* scratch) {
  const MatrixFormat& f = m.format;
  Piece a{m.panels + panel * f.panel_bytes(),
          f.panel_bytes(),
          0,
          f.inputs,
          f.group_size,
          f.scale_type,
          x,
          x_stride,
          out,
          out_stride};
  if (rows < 4) {  // weights are read once or twice: straight from the panels
    for (int32_t r = 0; r < rows; a.x += x_stride, a.out += out_stride) {
      if (rows - r >= 2) {
        panels_of<2>(f.bits, a, panels);
        a.x += x_stride;
        a.out += out_stride;
        r += 2;
      } else {
        panels_of<1>(f.bits, a, panels);
        ++r;
      }
    }
    return;
  }
  const bool ready = f.bits == 0 && f.scale_type == Dtype::float32;
  const int32_t step = ready ? f.inputs : kDepthAtOnce;
  constexpr int P = kExactPanels;
  for (int32_t i = 0; i < panels;) {
    const int32_t count = panels - i >= P ? P : 1;
    for (int32_t begin = 0; begin < f.inputs; begin += step) {
      const int32_t end = f.inputs - begin < step ? f.inputs : begin + step;
      Piece b = a;
      b.begin = begin;
      b.end = end;
      b.out = out + i * kPanel;
      b.panels = a.panels + i * a.panel_bytes;
      if (!ready) {
        const int32_t depth = end - begin;
        for (int32_t j = 0; j < count; ++j) {
          to_dense(f, b.panels + j * a.panel_bytes, begin, end,
                   scratch + int64_t{j} * depth * kPanel);
        }
        b.panel_bytes = int64_t{depth} * kPanel * 4;
        b.panels = reinterpret_cast<const uint8_t*>(scratch);
      }
      if (count == P) {
        dense_block<P>(b, rows);
      } else {
        dense_block<1>(b, rows);
      }
    }
    i += count;
  }
}

// ---- what follows a product -------------------------------------------------------------------

static void finish(const float* sums, int64_t sums_stride, int32_t rows, int32_t count,
                   const float* bias, float scale, const float* residual, int64_t residual_stride,
                   float* out, int64_t out_stride) {
  for (int32_t r = 0; r < rows; ++r) {
    const float* from = sums + r * sums_stride;
    const float* rest = residual ? residual + r * residual_stride : nullptr;
    float* to = out + r * out_stride;
    int32_t i = 0;
    for (; i + 16 <= count; i += 16) {
      F y = load(from + i);
      if (bias) y = add(y, load(bias + i));
      y = mul(y, splat(scale));
      if (rest) y = add(y, load(rest + i));
      store(to + i, y);
    }
    for (; i < count; ++i) {
      float y = from[i];
      if (bias) y += bias[i];
      y *= scale;
      if (rest) y += rest[i];
      to[i] = y;
    }
  }
}

// e^x; held between e^-87 and e^88. The polynomial is exp2_nonpositive's of isa/simd.hpp.
PAMX_INLINE F exponential(F x) {
  x = max(min(x, splat(88.0f)), splat(-87.0f));
  const F n = round(mul(x, splat(1.44269504f)));
  // ln 2 in two parts, the first with 9 bits: n times it is exact.
  F f = fma(n, splat(-0.693359375f), x);
  f = mul(fma(n, splat(2.12194440e-4f), f), splat(1.44269504f));
  F p = splat(0.00015353362f);
  p = fma(p, f, splat(0.0013398874f));
  p = fma(p, f, splat(0.009618437f));
  p = fma(p, f, splat(0.055503324f));
  p = fma(p, f, splat(0.24022648f));
  p = fma(p, f, splat(0.6931472f));
  p = fma(p, f, splat(1.0f));
  return mul(p, power_of_two(n));
}

PAMX_INLINE F sigmoid(F x) {
  const F one = splat(1.0f);
  return div(one, add(one, exponential(sub(splat(0.0f), x))));
}

// erf(|x|) with an absolute error below 1.5e-7: Abramowitz and Stegun, 7.1.26.
PAMX_INLINE F erf_of_magnitude(F x) {
  const F one = splat(1.0f), t = div(one, fma(splat(0.3275911f), x, one));
  F p = splat(1.061405429f);
  p = fma(p, t, splat(-1.453152027f));
  p = fma(p, t, splat(1.421413741f));
  p = fma(p, t, splat(-0.284496736f));
  p = fma(p, t, splat(0.254829592f));
  return sub(one, mul(mul(p, t), exponential(sub(splat(0.0f), mul(x, x)))));
}

template <Gate GATE>
PAMX_INLINE F activate(F x) {
  if constexpr (GATE == Gate::silu) {
    return mul(x, sigmoid(x));
  } else if constexpr (GATE == Gate::gelu) {
    const F erf = copy_sign(erf_of_magnitude(abs(mul(x, splat(0.70710678f)))), x);
    return mul(mul(x, splat(0.5f)), add(splat(1.0f), erf));
  } else if constexpr (GATE == Gate::gelu_tanh) {
    // (1 + tanh(u)) / 2 is sigmoid(2u), u = sqrt(2 / pi) (x + 0.044715 x^3).
    const F cube = mul(mul(x, x), mul(x, splat(0.044715f)));
    return mul(x, sigmoid(mul(splat(1.59576912f), add(x, cube))));
  } else {
    return max(splat(0.0f), x);
  }
}

template <Gate GATE>
static void gate_rows(const float* gate, const float* up, int64_t stride, int32_t rows,
                      int32_t count, float* out, int64_t out_stride) {
  for (int32_t r = 0; r < rows; ++r) {
    for (int32_t i = 0; i < count; i += 16) {
      const F y = mul(activate<GATE>(load(gate + r * stride + i)), load(up + r * stride + i));
      float* to = out + r * out_stride + i;
      if (count - i >= 16) {
        store(to, y);
      } else {
        float lanes[16];
        store(lanes, y);
        for (int32_t j = 0; j < count - i; ++j) to[j] = lanes[j];
      }
    }
  }
}

static void gate(Gate kind, const float* gate, const float* up, int64_t stride, int32_t rows,
                 int32_t count, float* out, int64_t out_stride) {
  switch (kind) {
    case Gate::silu:
      return gate_rows<Gate::silu>(gate, up, stride, rows, count, out, out_stride);
    case Gate::gelu:
      return gate_rows<Gate::gelu>(gate, up, stride, rows, count, out, out_stride);
    case Gate::gelu_tanh:
      return gate_rows<Gate::gelu_tanh>(gate, up, stride, rows, count, out, out_stride);
    default:
      return gate_rows<Gate::relu>(gate, up, stride, rows, count, out, out_stride);
  }
}

// ---- 16-bit rows ------------------------------------------------------------------------------

PAMX_INLINE F load_16(Dtype type, const uint16_t* p) {
  return type == Dtype::float16 ? load_float16(p) : load_bfloat16(p);
}

static void widen(Dtype type, const void* from, float* to, int64_t count) {
  const auto* p = static_cast<const uint16_t*>(from);
  int64_t i = 0;
  for (; i + 16 <= count; i += 16) store(to + i, load_16(type, p + i));
  if (i == count) return;
  uint16_t rest[16] = {};
  float lanes[16];
  __builtin_memcpy(rest, p + i, static_cast<std::size_t>(2 * (count - i)));
  store(lanes, load_16(type, rest));
  __builtin_memcpy(to + i, lanes, static_cast<std::size_t>(4 * (count - i)));
}

PAMX_INLINE void store_16(Dtype type, uint16_t* to, F a) {
  if (type == Dtype::float16) {
    store_float16(to, a);
  } else {
    store_bfloat16(to, a);
  }
}

static void narrow(Dtype type, const float* from, void* to, int64_t count) {
  auto* p = static_cast<uint16_t*>(to);
  int64_t i = 0;
  for (; i + 16 <= count; i += 16) store_16(type, p + i, load(from + i));
  if (i == count) return;
  float lanes[16] = {};
  uint16_t rest[16];
  __builtin_memcpy(lanes, from + i, static_cast<std::size_t>(4 * (count - i)));
  store_16(type, rest, load(lanes));
  __builtin_memcpy(p + i, rest, static_cast<std::size_t>(2 * (count - i)));
}

extern const LinearKernels linear_kernels{quantise, sum_groups, fast,  exact,
                                          finish,   gate,       widen, narrow};
