// Causal attention over pages with an online softmax, for one instruction set.
//
// A tile holds R = tokens x group query rows. Its pages are visited in order; each page's keys
// and values for the tile's KV head are converted to float32 once and used by all R rows. The
// running maximum and sum follow Milakov and Gimelshein, "Online normalizer calculation for
// softmax" (arXiv:1805.02867); scores are kept in units of log2, so every exponential is exp2.
//
// A row's result depends on its own query, its own pages and their absolute positions alone:
// pages outside the row's range leave its running state untouched. So its bits do not depend on
// the tile, the other rows, the number of threads or how a prompt was cut into chunks.
//
// Included by one source file per instruction set, inside its namespace; see simd.hpp.

constexpr float kLog2E = 1.44269504088896340736f;

// ---- float32 views of the three dtypes ------------------------------------------------------

struct Float32 {
  using Element = float;
  static F8 load8(const float* p) { return load(p); }
  static void store1(float* p, float x) { *p = x; }
  static float load1(const float* p) { return *p; }
};
struct Float16 {
  using Element = uint16_t;
  static F8 load8(const uint16_t* p) { return load_float16(p); }
  static void store1(uint16_t* p, float x) { *p = float_to_float16(x); }
  static float load1(const uint16_t* p) {
#if defined(PAMX_SIMD_AVX2)
    return _cvtsh_ss(*p);
#else
    return float16_to_float(*p);
#endif
  }
};
struct BFloat16 {
  using Element = uint16_t;
  static F8 load8(const uint16_t* p) { return load_bfloat16(p); }
  static void store1(uint16_t* p, float x) { *p = float_to_bfloat16(x); }
  static float load1(const uint16_t* p) {
    const uint32_t bits = static_cast<uint32_t>(*p) << 16;
    float f;
    __builtin_memcpy(&f, &bits, 4);
    return f;
  }
};

// ---- writing new rows -------------------------------------------------------------------------

template <typename Row, typename Pool>
static void write_pool(const PagedAttention& a, const Rows& rows, int32_t dim, void* pool) {
  auto* out = static_cast<typename Pool::Element*>(pool);
  const auto* in = static_cast<const typename Row::Element*>(rows.data);
  for (int32_t s = 0; s < a.num_sequences; ++s) {
    const int32_t queries = a.query_starts[s + 1] - a.query_starts[s];
    const int32_t* table = a.block_tables + int64_t{s} * a.max_blocks;
    for (int32_t i = 0; i < queries; ++i) {
      const int32_t position = a.context_lens[s] - queries + i;
      const int64_t slot =
          int64_t{table[position / a.block_size]} * a.block_size + position % a.block_size;
      for (int32_t h = 0; h < a.kv_heads; ++h) {
        auto* to = out + (slot * a.kv_heads + h) * dim;
        const auto* from = in + (a.query_starts[s] + i) * rows.token_stride + h * rows.head_stride;
        for (int32_t d = 0; d < dim; ++d) {
          if constexpr (__is_same(Row, Pool)) {
            to[d] = from[d * rows.dim_stride];
          } else {
            Pool::store1(to + d, Row::load1(from + d * rows.dim_stride));
          }
        }
      }
    }
  }
}

template <typename Row, typename Pool>
static void write_both(const PagedAttention& a) {
  write_pool<Row, Pool>(a, a.keys, a.k_dim, a.key_pool);
  write_pool<Row, Pool>(a, a.values, a.v_dim, a.value_pool);
}

static void write_rows(const PagedAttention& a) {
  if (!a.keys.data) return;
  if (a.dtype == a.pool_dtype) {
    if (a.dtype == Dtype::float32) return write_both<Float32, Float32>(a);
    return write_both<Float16, Float16>(a);  // bits are copied, whichever 16-bit format it is
  }
  if (a.pool_dtype == Dtype::float16) return write_both<Float32, Float16>(a);
  write_both<Float32, BFloat16>(a);
}

// ---- one tile ---------------------------------------------------------------------------------

// scores[j] = query . keys[j] for j in [0, count); a key's sum runs over its lanes in one order
// whether it is taken eight at a time or alone.
static void dot_keys(const float* query, const float* keys, int64_t stride, int32_t dim,
                     int32_t count, float* scores) {
  int32_t j = 0;
  for (; j + 8 <= count; j += 8) {
    const float* k = keys + j * stride;
    F8 acc[8];
    for (auto& x : acc) x = splat(0.0f);
    for (int32_t d = 0; d < dim; d += 8) {
      const F8 q = load(query + d);
      for (int i = 0; i < 8; ++i) acc[i] = fma(q, load(k + i * stride + d), acc[i]);
    }
    for (int i = 0; i < 8; ++i) scores[j + i] = sum(acc[i]);
  }
  for (; j < count; ++j) {
    F8 acc = splat(0.0f);
    for (int32_t d = 0; d < dim; d += 8) {
      acc = fma(load(query + d), load(keys + j * stride + d), acc);
    }
    scores[j] = sum(acc);
  }
}

// out[d] += sum of weights[j] * values[j][d], tokens in order.
static void add_values(const float* weights, const float* values, int64_t stride, int32_t dim,
                       int32_t count, float* out) {
  int32_t d = 0;
  for (; d + 32 <= dim; d += 32) {
    F8 acc[4];
    for (int i = 0; i < 4; ++i) acc[i] = load(out + d + 8 * i);
    for (int32_t j = 0; j < count; ++j) {
      const F8 w = splat(weights[j]);
      for (int i = 0; i < 4; ++i) {
        acc[i] = fma(w, load(values + j * stride + d + 8 * i), acc[i]);
      }
    }
    for (int i = 0; i < 4; ++i) store(out + d + 8 * i, acc[i]);
  }
  for (; d < dim; d += 8) {
    F8 acc = load(out + d);
    for (int32_t j = 0; j < count; ++j) {
      acc = fma(splat(weights[j]), load(values + j * stride + d), acc);
    }
    store(out + d, acc);
  }
}

// Turns `count` scores into weights, and folds them into the row's running maximum and sum.
// Returns what the row's output so far must be multiplied with.
static float update_softmax(float* scores, int32_t count, float* row_max, float* row_sum) {
  float page_max = scores[0];
  for (int32_t j = 1; j < count; ++j) page_max = scores[j] > page_max ? scores[j] : page_max;
  const float new_max = page_max > *row_max ? page_max : *row_max;
  alignas(32) float lanes[8];
  // A row that has seen nothing has maximum -inf and sum 0: exp2 of the clamped difference is
  // harmless, for it multiplies zeros.
  store(lanes, exp2_nonpositive(splat(*row_max - new_max)));
  const float correction = lanes[0];
  float total = 0.0f;
  for (int32_t j = 0; j < count; j += 8) {
    const int32_t n = count - j < 8 ? count - j : 8;
    for (int32_t i = 0; i < 8; ++i) lanes[i] = i < n ? scores[j + i] - new_max : -126.0f;
    store(lanes, exp2_nonpositive(load(lanes)));
    for (int32_t i = 0; i < n; ++i) {
      scores[j + i] = lanes[i];
      total += lanes[i];
    }
  }
  *row_sum = *row_sum * correction + total;
  *row_max = new_max;
  return correction;
}

template <typename T>
static const float* page_as_float(const void* pool, int64_t row, int32_t kv_heads, int32_t dim,
                                  int32_t first, int32_t last, float* buffer, int64_t* stride) {
  const auto* page = static_cast<const typename T::Element*>(pool) + row * dim;
  const int64_t token_stride = int64_t{kv_heads} * dim;
  if constexpr (sizeof(typename T::Element) == 4) {
    (void)first, (void)last, (void)buffer;
    *stride = token_stride;
    return page;
  } else {
    for (int32_t t = first; t < last; ++t) {
      for (int32_t d = 0; d < dim; d += 8) {
        store(buffer + int64_t{t} * dim + d, T::load8(page + t * token_stride + d));
      }
    }
    *stride = dim;
    return buffer;
  }
}

template <typename T, typename Pool>
static void attend(const PagedAttention& a, const Tile& tile, float* scratch) {
  using Element = typename T::Element;
  const int32_t group = a.heads / a.kv_heads;
  const int32_t tokens = tile.end - tile.begin;
  const int32_t rows = tokens * group;
  const int32_t first_token = a.query_starts[tile.sequence];
  const int32_t first_position = a.context_lens[tile.sequence] -
                                 (a.query_starts[tile.sequence + 1] - first_token) + tile.begin;
  const int32_t* table = a.block_tables + int64_t{tile.sequence} * a.max_blocks;

  float* query = scratch;                         // [rows, k_dim], scaled
  float* acc = query + int64_t{rows} * a.k_dim;   // [rows, v_dim]
  float* scores = acc + int64_t{rows} * a.v_dim;  // [rows, block_size]
  float* row_max = scores + int64_t{rows} * a.block_size;
  float* row_sum = row_max + rows;
  float* page = row_sum + rows;  // [block_size, k_dim or v_dim]

  // With a soft-cap the tanh needs the plain score; without, log2(e) joins the scale.
  const float scale = a.softcap > 0.0f ? a.scale / a.softcap : a.scale * kLog2E;
  for (int32_t r = 0; r < rows; ++r) {
    const int32_t head = tile.kv_head * group + r % group;
    const auto* in = static_cast<const Element*>(a.queries.data) +
                     (first_token + tile.begin + r / group) * a.queries.token_stride +
                     head * a.queries.head_stride;
    for (int32_t d = 0; d < a.k_dim; ++d) {
      query[int64_t{r} * a.k_dim + d] = T::load1(in + d * a.queries.dim_stride) * scale;
    }
    for (int32_t d = 0; d < a.v_dim; ++d) acc[int64_t{r} * a.v_dim + d] = 0.0f;
    // A sink is a score that was seen before all others and carries no value.
    row_max[r] = a.sinks ? a.sinks[head] * kLog2E : -__builtin_inff();
    row_sum[r] = a.sinks ? 1.0f : 0.0f;
  }

  const int32_t last_position = first_position + tokens - 1;
  const int32_t start =
      a.window > 0 && first_position >= a.window ? first_position - a.window + 1 : 0;
  for (int32_t b = start / a.block_size; b <= last_position / a.block_size; ++b) {
    const int32_t page_start = b * a.block_size;
    const int32_t used_end = last_position + 1 - page_start < a.block_size
                                 ? last_position + 1 - page_start
                                 : a.block_size;
    const int32_t used_begin = start > page_start ? start - page_start : 0;
    const int64_t pool_row = (int64_t{table[b]} * a.block_size) * a.kv_heads + tile.kv_head;

    // The part [begin, end) of this page that a row may see.
    const auto visible = [&](int32_t r, int32_t* begin, int32_t* end) {
      const int32_t position = first_position + r / group;
      const int64_t low = a.window > 0 ? int64_t{position} - a.window + 1 - page_start : 0;
      const int32_t high = position + 1 - page_start;
      *begin = low > 0 ? static_cast<int32_t>(low < a.block_size ? low : a.block_size) : 0;
      *end = high < a.block_size ? high : a.block_size;
      return *begin < *end;
    };

    int64_t stride;
    const float* keys = page_as_float<Pool>(a.key_pool, pool_row, a.kv_heads, a.k_dim, used_begin,
                                            used_end, page, &stride);
    for (int32_t r = 0; r < rows; ++r) {
      int32_t begin, end;
      if (!visible(r, &begin, &end)) continue;
      float* s = scores + int64_t{r} * a.block_size;
      dot_keys(query + int64_t{r} * a.k_dim, keys + begin * stride, stride, a.k_dim, end - begin,
               s);
      if (a.softcap > 0.0f) {
        for (int32_t j = 0; j < end - begin; ++j) {
          s[j] = a.softcap * kLog2E * __builtin_tanhf(s[j]);
        }
      }
      const float correction = update_softmax(s, end - begin, &row_max[r], &row_sum[r]);
      if (correction != 1.0f) {
        const F8 c = splat(correction);
        float* o = acc + int64_t{r} * a.v_dim;
        for (int32_t d = 0; d < a.v_dim; d += 8) store(o + d, mul(load(o + d), c));
      }
    }
    const float* values = page_as_float<Pool>(a.value_pool, pool_row, a.kv_heads, a.v_dim,
                                              used_begin, used_end, page, &stride);
    for (int32_t r = 0; r < rows; ++r) {
      int32_t begin, end;
      if (!visible(r, &begin, &end)) continue;
      add_values(scores + int64_t{r} * a.block_size, values + begin * stride, stride, a.v_dim,
                 end - begin, acc + int64_t{r} * a.v_dim);
    }
  }

  for (int32_t r = 0; r < rows; ++r) {
    auto* out = static_cast<Element*>(a.out.data) +
                (first_token + tile.begin + r / group) * a.out.token_stride +
                (tile.kv_head * group + r % group) * a.out.head_stride;
    const float inverse = row_sum[r] > 0.0f ? 1.0f / row_sum[r] : 0.0f;
    for (int32_t d = 0; d < a.v_dim; ++d) {
      T::store1(out + d, acc[int64_t{r} * a.v_dim + d] * inverse);
    }
  }
}

static void attend_tile(const PagedAttention& a, const Tile& tile, float* scratch) {
  if (a.dtype == Dtype::float16) return attend<Float16, Float16>(a, tile, scratch);
  if (a.dtype == Dtype::bfloat16) return attend<BFloat16, BFloat16>(a, tile, scratch);
  if (a.pool_dtype == Dtype::float16) return attend<Float32, Float16>(a, tile, scratch);
  if (a.pool_dtype == Dtype::bfloat16) return attend<Float32, BFloat16>(a, tile, scratch);
  attend<Float32, Float32>(a, tile, scratch);
}
