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

// The lanes' file says how many rows and panels its registers hold: kExactRows x kExactPanels
// sums when weights are float32 already, kExactSums when they come straight from a panel. With
// kOneByOne it has no registers to speak of, and the kernel is compiled once for each format.

#if !defined(PAMX_INLINE)
#define PAMX_INLINE static inline __attribute__((always_inline))
#endif

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

// R rows of a tile that has STRIDE of them (0: as many as it says).
template <int BITS, bool WIDE, int R, int STRIDE = R>
static void fast_tile(const MatrixFormat& f, const uint8_t* p, const Tile& tile, float* out,
                      int64_t out_stride) {
  const int32_t units = f.group_size / kUnit, groups = f.inputs / f.group_size;
  const Dtype type = f.scale_type;
  const int64_t stride = STRIDE ? STRIDE : tile.rows;
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
      digits += stride * kUnit;
      if constexpr (WIDE) low += stride * kUnit;
      scales += stride;
      totals += stride;
    }
    for (int r = 0; r < R; ++r) {
      acc[r] = fma(s, t[r], acc[r]);
      acc[r] = fma(b, splat(sums[r]), acc[r]);
    }
    sums += stride;
  }
  for (int r = 0; r < R; ++r) store(out + r * out_stride, acc[r]);
}

template <int BITS, bool WIDE>
static void fast_rows(const MatrixFormat& f, const uint8_t* p, const Tile& tile, float* out,
                      int64_t out_stride) {
  // Two digits are for the output head, which rarely has 2 to 7 rows: not worth their own code.
  if constexpr (kOneByOne || WIDE) {
    if (kOneByOne || tile.rows < kTile) {
      Tile row = tile;
      for (int32_t r = 0; r < tile.rows; ++r) {
        fast_tile<BITS, WIDE, 1, 0>(f, p, row, out + r * out_stride, out_stride);
        row.digits += kUnit;
        if (WIDE) row.low += kUnit;
        ++row.scales;
        ++row.totals;
        ++row.sums;
      }
      return;
    }
  } else {
    if (tile.rows == 1) return fast_tile<BITS, WIDE, 1>(f, p, tile, out, out_stride);
    if (tile.rows == 2) return fast_tile<BITS, WIDE, 2>(f, p, tile, out, out_stride);
    if (tile.rows == 4) return fast_tile<BITS, WIDE, 4>(f, p, tile, out, out_stride);
  }
  if constexpr (!kOneByOne) fast_tile<BITS, WIDE, kTile>(f, p, tile, out, out_stride);
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

// Inputs [begin, end) of one quantised panel as float32.
static void to_dense(const MatrixFormat& f, const uint8_t* panel, int32_t begin, int32_t end,
                     float* to) {
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
  while (i < panels) {  // what is left takes the one shape that all row counts share
    for (int r = 0; r < R; ++r) {
      Piece b = a;
      b.x += r * a.x_stride;
      b.out += r * a.out_stride;
      piece_of<1, 1>(bits, b);
    }
    move(1);
  }
}

// As many tiles of R rows as there are; returns the rows done.
template <Dtype TYPE, int R, int P>
static int32_t dense_rows(const Piece& a, int32_t r, int32_t rows) {
  for (; r + R <= rows; r += R) {
    Piece b = a;
    b.x += r * a.x_stride;
    b.out += r * a.out_stride;
    dense_piece<TYPE, R, P>(b);
  }
  return r;
}

template <Dtype TYPE, int P>
static void dense_block(const Piece& a, int32_t rows) {
  int32_t r = dense_rows<TYPE, kExactRows, P>(a, 0, rows);
  if constexpr (kExactRows > 4) r = dense_rows<TYPE, 4, P>(a, r, rows);
  if constexpr (kExactRows > 1) dense_rows<TYPE, 1, P>(a, r, rows);
}

template <int P>
static void dense_block_of(Dtype type, const Piece& a, int32_t rows) {
  switch (type) {
    case Dtype::float16:
      return dense_block<Dtype::float16, P>(a, rows);
    case Dtype::bfloat16:
      return dense_block<Dtype::bfloat16, P>(a, rows);
    default:
      return dense_block<Dtype::float32, P>(a, rows);
  }
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
      if constexpr (!kOneByOne) {
        if (rows - r >= 2) {
          panels_of<2>(f.bits, a, panels);
          a.x += x_stride;
          a.out += out_stride;
          r += 2;
          continue;
        }
      }
      panels_of<1>(f.bits, a, panels);
      ++r;
    }
    return;
  }
  // Quantised weights become float32 once for all rows, as much of a panel as scratch holds.
  const int32_t step = f.bits == 0 ? f.inputs : kDepthAtOnce;
  constexpr int P = kExactPanels;
  for (int32_t i = 0; i < panels;) {
    const int32_t count = panels - i >= P ? P : 1;
    Piece b = a;
    b.panels = a.panels + i * a.panel_bytes;
    b.out = out + i * kPanel;
    for (b.begin = 0; b.begin < f.inputs; b.begin = b.end) {
      b.end = f.inputs - b.begin < step ? f.inputs : b.begin + step;
      if (f.bits != 0) {
        const int64_t floats = int64_t{b.end - b.begin} * kPanel;
        for (int32_t j = 0; j < count; ++j) {
          to_dense(f, a.panels + (i + j) * a.panel_bytes, b.begin, b.end, scratch + j * floats);
        }
        b.panels = reinterpret_cast<const uint8_t*>(scratch);
        b.panel_bytes = floats * 4;
        b.scale_type = Dtype::float32;
      }
      if (count == P) {
        dense_block_of<P>(b.scale_type, b, rows);
      } else {
        dense_block_of<1>(b.scale_type, b, rows);
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

extern const LinearKernels linear_kernels{quantise, sum_groups, fast, exact, finish};
