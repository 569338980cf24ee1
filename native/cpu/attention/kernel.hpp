// Causal attention over pages, partition by partition, for one instruction set.
//
// A partition is a run of tokens at an absolute position. For each query row it gives the largest
// score in units of log2, the sum of exp2(score - largest), and the values weighted by those
// exponentials, all from a fresh start; partitions are folded into a row in ascending order by
// fold(), as in Milakov and Gimelshein, "Online normalizer calculation for softmax"
// (arXiv:1805.02867). Inside a partition a score is a sum over eight lanes, and an output is a sum
// over tokens in ascending order.
//
// So a row's bits depend on its own query, its own keys and values and their absolute positions
// alone. There are two ways to walk the pages, one for few rows and one for many; both call the
// same score(), softmax(), accumulate() and fold() and give the same bits.
//
// Included by one source file per instruction set, inside its namespace; see simd.hpp.

using plan::AttentionFold;
using plan::AttentionItem;

constexpr float kLog2E = 1.44269504088896340736f;
constexpr float kInfinity = __builtin_inff();

// ---- formats ------------------------------------------------------------------------------------

struct Float32 {
  using Element = float;
  static Wide load16(const float* p) { return Wide::load(p); }
  static F8 load8(const float* p) { return F8::load(p); }
  static void store8(float* p, F8 x) { store(p, x); }
  static float load1(const float* p) { return *p; }
  static void store1(float* p, float x) { *p = x; }
};
struct Float16 {
  using Element = uint16_t;
  static Wide load16(const uint16_t* p) { return Wide::load_float16(p); }
  static F8 load8(const uint16_t* p) { return F8::load_float16(p); }
  static void store8(uint16_t* p, F8 x) { store_float16(p, x); }
  static float load1(const uint16_t* p) { return float16_to_float(*p); }
  static void store1(uint16_t* p, float x) { *p = float_to_float16(x); }
};
struct BFloat16 {
  using Element = uint16_t;
  static Wide load16(const uint16_t* p) { return Wide::load_bfloat16(p); }
  static F8 load8(const uint16_t* p) { return F8::load_bfloat16(p); }
  static void store8(uint16_t* p, F8 x) { store_bfloat16(p, x); }
  static float load1(const uint16_t* p) { return bfloat16_to_float(*p); }
  static void store1(uint16_t* p, float x) { *p = float_to_bfloat16(x); }
};

// How keys and values lie in a pool: a KV format. Tokens' rows of one head, as floats, are all
// that the kernels below ask of it, so a format with codes and scales needs only its own.
template <class Format>
struct PoolRows {
  using Element = typename Format::Element;
  static constexpr int32_t kLine = 64 / sizeof(Element);
  const Element* data;
  int64_t stride;     // elements from a token's row to the next token's
  int64_t ahead = 0;  // bytes from what is read to what will be read a little later

  // The rows of `head` from token `slot` (block times block size, and the place in it) on.
  static PoolRows at(const void* pool, int64_t slot, int32_t kv_heads, int32_t head, int32_t dim) {
    return {static_cast<const Element*>(pool) + (slot * kv_heads + head) * dim,
            int64_t{kv_heads} * dim};
  }
  Wide load16(int64_t token, int32_t d) const { return Format::load16(data + token * stride + d); }
  F8 load8(int64_t token, int32_t d) const { return Format::load8(data + token * stride + d); }
  PoolRows from(int64_t token) const { return {data + token * stride, stride, ahead}; }
  // Asks for what will be needed later, one line for each line that is read: asking for many at
  // once would only wait.
  // (GCC takes a function of nothing but prefetches for one without effect and drops its calls.)
  [[gnu::always_inline]] void prefetch(int64_t token, int32_t d) const {
    if (d % kLine != 0) return;
    // Into L2: the lines are many, and L1 is full of queries, weights and outputs.
    __builtin_prefetch(reinterpret_cast<const char*>(data + token * stride + d) + ahead, 0, 2);
  }
};

// Rows of floats in scratch memory.
struct FloatRows {
  const float* data;
  int64_t stride;
  Wide load16(int64_t token, int32_t d) const { return Wide::load(data + token * stride + d); }
  F8 load8(int64_t token, int32_t d) const { return F8::load(data + token * stride + d); }
  FloatRows from(int64_t token) const { return {data + token * stride, stride}; }
  void prefetch(int64_t, int32_t) const {}
};

// ---- scores -------------------------------------------------------------------------------------

// Tokens that are scored together; a page holds whole steps of them.
constexpr int32_t kScoreStep = 4;
// Rows that share one load of a key or a value.
constexpr int32_t kRowBlock = 4;

#if defined(PAMX_SIMD_AVX2)
// In each 128-bit part on its own: the sums of a's, b's, c's and d's four lanes.
static inline __m256 sums_of_fours(__m256 a, __m256 b, __m256 c, __m256 d) {
  const __m256 ab = _mm256_add_ps(_mm256_shuffle_ps(a, b, 0x44), _mm256_shuffle_ps(a, b, 0xee));
  const __m256 cd = _mm256_add_ps(_mm256_shuffle_ps(c, d, 0x44), _mm256_shuffle_ps(c, d, 0xee));
  return _mm256_add_ps(_mm256_shuffle_ps(ab, cd, 0x88), _mm256_shuffle_ps(ab, cd, 0xdd));
}

// a's halves added, and above them b's.
static inline __m256 fold_two(F8 a, F8 b) {
  return _mm256_add_ps(_mm256_blend_ps(a.v, b.v, 0xf0), _mm256_permute2f128_ps(a.v, b.v, 0x21));
}
#endif

// out[r * stride + t] = sum(acc[r][t]).
template <int R>
static inline void store_sums(const F8 (&acc)[R][kScoreStep], float* out, int64_t stride) {
#if defined(PAMX_SIMD_AVX2)
  static_assert(kScoreStep == 4);
  for (int r = 0; r < R; r += 2) {  // the additions of sum(), for two rows of four tokens at once
    const auto& x = acc[r];
    const auto& y = acc[r + 1 < R ? r + 1 : r];
    const __m256 sums = sums_of_fours(fold_two(x[0], y[0]), fold_two(x[1], y[1]),
                                      fold_two(x[2], y[2]), fold_two(x[3], y[3]));
    _mm_storeu_ps(out + r * stride, _mm256_castps256_ps128(sums));
    if (r + 1 < R) _mm_storeu_ps(out + (r + 1) * stride, _mm256_extractf128_ps(sums, 1));
  }
#else
  for (int r = 0; r < R; ++r) {
    for (int t = 0; t < kScoreStep; ++t) out[r * stride + t] = sum(acc[r][t]);
  }
#endif
}

// Eight lanes, also where there are sixteen: adding up sixteen costs more than they save.
template <int R, class Keys>
static inline void score_step(const float* queries, const Keys& keys, int32_t dim, float* out,
                              int64_t out_stride) {
  F8 acc[R][kScoreStep];
  for (int r = 0; r < R; ++r) {
    for (int t = 0; t < kScoreStep; ++t) acc[r][t] = F8::splat(0.0f);
  }
  for (int32_t d = 0; d < dim; d += 8) {
    F8 q[R];
    for (int r = 0; r < R; ++r) q[r] = F8::load(queries + int64_t{r} * dim + d);
    for (int t = 0; t < kScoreStep; ++t) {
      const F8 key = keys.load8(t, d);
      keys.prefetch(t, d);
      for (int r = 0; r < R; ++r) acc[r][t] = fma(q[r], key, acc[r][t]);
    }
  }
  store_sums<R>(acc, out, out_stride);
}

// out[r][t] = queries[r] . keys[t] for `rows` of at most kRowBlock and kScoreStep tokens.
template <class Keys>
static inline void score(int32_t rows, const float* queries, const Keys& keys, int32_t dim,
                         float* out, int64_t out_stride) {
  switch (rows) {
    case 1:
      return score_step<1>(queries, keys, dim, out, out_stride);
    case 2:
      return score_step<2>(queries, keys, dim, out, out_stride);
    case 3:
      return score_step<3>(queries, keys, dim, out, out_stride);
    default:
#if defined(PAMX_SIMD_AVX512)
      return score_step<4>(queries, keys, dim, out, out_stride);
#else  // registers hold the accumulators of three rows
      score_step<2>(queries, keys, dim, out, out_stride);
      return score_step<2>(queries + int64_t{2} * dim, keys, dim, out + 2 * out_stride, out_stride);
#endif
  }
}

// ---- softmax ------------------------------------------------------------------------------------

// Turns scores[begin, end) into weights and gives their largest and their sum. Lanes stand at
// absolute places, so the order of the sum does not depend on how the scores came about.
// `scores` has room for whole Wides; what stands beside the range in its first and last is lost.
static inline void softmax(float* scores, int32_t begin, int32_t end, float softcap, float* row_max,
                           float* row_sum) {
  const int32_t first = begin / kWideLanes * kWideLanes;
  const int32_t last = (end + kWideLanes - 1) / kWideLanes * kWideLanes;
  if (softcap > 0.0f) {
    const Wide cap = Wide::splat(softcap * kLog2E);
    for (int32_t j = first; j < last; j += kWideLanes) {
      store(scores + j, mul(cap, tanh(Wide::load(scores + j))));
    }
  }
  for (int32_t j = first; j < begin; ++j) scores[j] = -kInfinity;
  for (int32_t j = end; j < last; ++j) scores[j] = -kInfinity;
  Wide top = Wide::splat(-kInfinity);
  for (int32_t j = first; j < last; j += kWideLanes) top = max(Wide::load(scores + j), top);
  float lanes[kWideLanes];
  store(lanes, top);
  float largest = lanes[0];
  for (int i = 1; i < kWideLanes; ++i) largest = lanes[i] > largest ? lanes[i] : largest;
  const Wide shift = Wide::splat(largest), limit = Wide::splat(-126.0f);
  Wide total = Wide::splat(0.0f);
  for (int32_t j = first; j < last; j += kWideLanes) {
    const Wide x = sub(Wide::load(scores + j), shift);
    const Wide weight = zero_below(x, limit, exp2_nonpositive(x));
    store(scores + j, weight);
    total = add(total, weight);
  }
  *row_max = largest;
  *row_sum = sum(total);
}

// ---- weighted values ----------------------------------------------------------------------------

#if defined(PAMX_SIMD_AVX512)
constexpr int kValueWides = 4;
#else
constexpr int kValueWides = 1;
#endif

template <int R, int C, class Values>
static inline int32_t accumulate_columns(const float* weights, int64_t weight_stride,
                                         const Values& values, int32_t begin, int32_t end,
                                         int32_t d, int32_t dim, float* out, int64_t out_stride) {
  for (; d + C * kWideLanes <= dim; d += C * kWideLanes) {
    Wide acc[R][C];
    for (int r = 0; r < R; ++r) {
      for (int c = 0; c < C; ++c) acc[r][c] = Wide::load(out + r * out_stride + d + c * kWideLanes);
    }
    for (int32_t t = begin; t < end; ++t) {
      Wide value[C];
      for (int c = 0; c < C; ++c) {
        value[c] = values.load16(t, d + c * kWideLanes);
        values.prefetch(t, d + c * kWideLanes);
      }
      for (int r = 0; r < R; ++r) {
        const Wide w = Wide::splat(weights[r * weight_stride + t]);
        for (int c = 0; c < C; ++c) acc[r][c] = fma(w, value[c], acc[r][c]);
      }
    }
    for (int r = 0; r < R; ++r) {
      for (int c = 0; c < C; ++c) store(out + r * out_stride + d + c * kWideLanes, acc[r][c]);
    }
  }
  return d;
}

template <int R, class Values>
static inline void accumulate_rows(const float* weights, int64_t weight_stride,
                                   const Values& values, int32_t begin, int32_t end, int32_t dim,
                                   float* out, int64_t out_stride) {
  int32_t d = 0;
  if constexpr (kValueWides > 1) {
    d = accumulate_columns<R, kValueWides>(weights, weight_stride, values, begin, end, d, dim, out,
                                           out_stride);
  }
  d = accumulate_columns<R, 1>(weights, weight_stride, values, begin, end, d, dim, out, out_stride);
  if (d == dim) return;
  for (int r = 0; r < R; ++r) {
    F8 acc = F8::load(out + r * out_stride + d);
    for (int32_t t = begin; t < end; ++t) {
      acc = fma(F8::splat(weights[r * weight_stride + t]), values.load8(t, d), acc);
    }
    store(out + r * out_stride + d, acc);
  }
}

// out[r] += the sum over tokens t in [begin, end), in order, of weights[r][t] * values[t].
template <class Values>
static inline void accumulate(int32_t rows, const float* weights, int64_t weight_stride,
                              const Values& values, int32_t begin, int32_t end, int32_t dim,
                              float* out, int64_t out_stride) {
  switch (rows) {
    case 1:
      return accumulate_rows<1>(weights, weight_stride, values, begin, end, dim, out, out_stride);
    case 2:
      return accumulate_rows<2>(weights, weight_stride, values, begin, end, dim, out, out_stride);
    case 3:
      return accumulate_rows<3>(weights, weight_stride, values, begin, end, dim, out, out_stride);
    default:
      return accumulate_rows<4>(weights, weight_stride, values, begin, end, dim, out, out_stride);
  }
}

// ---- rows, partials, folding --------------------------------------------------------------------

// A row's state: what it has seen so far, or what one partition gives it.
struct Partials {
  float* out;  // [rows, v_dim], not yet divided by the sum
  float* max;  // [rows], units of log2
  float* sum;  // [rows]
};

static inline Partials partials_at(float* memory, int64_t rows, int32_t v_dim) {
  return {memory, memory + rows * v_dim, memory + rows * (v_dim + 1)};
}

static inline void set_zero(float* p, int64_t count) {
  __builtin_memset(p, 0, static_cast<std::size_t>(count) * sizeof(float));
}

// The one place where a partition joins the row it belongs to.
static inline void fold(const Partials& state, int64_t to, const Partials& part, int64_t from,
                        int32_t v_dim) {
  const float part_max = part.max[from], part_sum = part.sum[from];
  if (part_sum == 0.0f) return;  // the row sees nothing of this partition
  const float old_max = state.max[to];
  const float top = part_max > old_max ? part_max : old_max;
  // A row that has seen nothing has maximum -inf and sum 0: exp2 of the clamped difference is
  // harmless, for it multiplies zeros.
  float lanes[8];
  store(lanes, exp2_nonpositive(F8::splat(old_max - top)));
  const float keep = lanes[0];
  store(lanes, exp2_nonpositive(F8::splat(part_max - top)));
  const float join = lanes[0];
  state.max[to] = top;
  state.sum[to] = state.sum[to] * keep + part_sum * join;
  float* out = state.out + to * v_dim;
  const float* in = part.out + from * v_dim;
  const F8 k = F8::splat(keep), j = F8::splat(join);
  for (int32_t d = 0; d < v_dim; d += 8) {
    store(out + d, fma(F8::load(in + d), j, mul(F8::load(out + d), k)));
  }
}

// A sink is a score that was seen before all others and carries no value.
static inline void begin_row(const PagedAttention& a, const Partials& state, int64_t row,
                             int32_t head) {
  state.max[row] = a.sinks ? a.sinks[head] * kLog2E : -kInfinity;
  state.sum[row] = a.sinks ? 1.0f : 0.0f;
  set_zero(state.out + row * a.v_dim, a.v_dim);
}

template <class Row>
static inline void end_row_as(const PagedAttention& a, const float* in, float factor, int32_t token,
                              int32_t head) {
  auto* out = static_cast<typename Row::Element*>(a.out.data) + token * a.out.token_stride +
              head * a.out.head_stride;
  const F8 f = F8::splat(factor);
  for (int32_t d = 0; d < a.v_dim; d += 8) Row::store8(out + d, mul(F8::load(in + d), f));
}

// Writes a row's output; `token` counts over the whole call.
static inline void end_row(const PagedAttention& a, const Partials& state, int64_t row,
                           int32_t token, int32_t head) {
  const float total = state.sum[row];
  const float factor = total == 0.0f ? 0.0f : 1.0f / total;
  const float* in = state.out + row * a.v_dim;
  if (a.dtype == Dtype::float32) return end_row_as<Float32>(a, in, factor, token, head);
  if (a.dtype == Dtype::float16) return end_row_as<Float16>(a, in, factor, token, head);
  end_row_as<BFloat16>(a, in, factor, token, head);
}

template <class Row>
static inline void load_query_as(const PagedAttention& a, int32_t token, int32_t head, float scale,
                                 float* out) {
  const auto* in = static_cast<const typename Row::Element*>(a.queries.data) +
                   token * a.queries.token_stride + head * a.queries.head_stride;
  if (a.queries.dim_stride == 1) {
    const F8 s = F8::splat(scale);
    for (int32_t d = 0; d < a.k_dim; d += 8) store(out + d, mul(Row::load8(in + d), s));
  } else {
    for (int32_t d = 0; d < a.k_dim; ++d)
      out[d] = Row::load1(in + d * a.queries.dim_stride) * scale;
  }
}

static inline void load_query(const PagedAttention& a, int32_t token, int32_t head, float* out) {
  // With a soft-cap the tanh needs the plain score; without, log2(e) joins the scale.
  const float scale = a.softcap > 0.0f ? a.scale / a.softcap : a.scale * kLog2E;
  if (a.dtype == Dtype::float32) return load_query_as<Float32>(a, token, head, scale, out);
  if (a.dtype == Dtype::float16) return load_query_as<Float16>(a, token, head, scale, out);
  load_query_as<BFloat16>(a, token, head, scale, out);
}

// ---- an item of work ----------------------------------------------------------------------------

// What the two walks share: an item's query tokens, and what each sees of a partition.
struct View {
  const PagedAttention& call;
  const AttentionItem& item;
  int32_t partition;       // tokens
  int32_t group;           // query heads of a KV head
  int32_t tokens;          // query tokens
  int32_t rows;            // tokens * group: row t * group + g of each KV head
  int32_t first_token;     // of the call
  int32_t first_position;  // of the first query token
  const int32_t* table;

  View(const AttentionWork& work, const AttentionItem& i)
      : call(*work.call), item(i), partition(work.partition) {
    const int32_t start = call.query_starts[item.sequence];
    group = call.heads / call.kv_heads;
    tokens = item.end - item.begin;
    rows = tokens * group;
    first_token = start + item.begin;
    first_position = call.context_lens[item.sequence] -
                     (call.query_starts[item.sequence + 1] - start) + item.begin;
    table = call.block_tables + int64_t{item.sequence} * call.max_blocks;
  }
  // [begin, end) of the partition that starts at `start`, seen by query token t; may be empty.
  int32_t begin(int32_t t, int32_t start) const {
    if (call.window == 0) return 0;
    const int64_t low = int64_t{first_position} + t - call.window + 1 - start;
    return low <= 0 ? 0 : static_cast<int32_t>(low < partition ? low : partition);
  }
  int32_t end(int32_t t, int32_t start) const {
    const int32_t high = first_position + t + 1 - start;
    return high <= 0 ? 0 : high < partition ? high : partition;
  }
  int64_t slot(int32_t position) const {
    return int64_t{table[position / call.block_size]} * call.block_size +
           position % call.block_size;
  }
};

// softmax() over what row `r` of a KV head sees of the partition.
static inline void softmax_seen(const View& view, int32_t start, int32_t r, float* scores,
                                const Partials& out, int64_t to) {
  const int32_t begin = view.begin(r / view.group, start);
  const int32_t end = view.end(r / view.group, start);
  out.max[to] = -kInfinity;
  out.sum[to] = 0.0f;
  if (begin < end) softmax(scores, begin, end, view.call.softcap, &out.max[to], &out.sum[to]);
}

// accumulate() for a block of rows that may differ in what they see: `row` counts within one KV
// head, tokens [begin, end) count from the partition's start, where `values` stands.
template <class Values>
static inline void accumulate_seen(const View& view, int32_t start, int32_t row, int32_t rows,
                                   const float* weights, const Values& values, int32_t begin,
                                   int32_t end, float* out) {
  const int64_t stride = view.partition;
  const int32_t dim = view.call.v_dim;
  if (view.tokens == 1) {  // then the item's range is the row's
    return accumulate(rows, weights, stride, values, begin, end, dim, out, dim);
  }
  int32_t low[kRowBlock], high[kRowBlock];
  int32_t common_begin = begin, common_end = end;
  for (int32_t r = 0; r < rows; ++r) {
    const int32_t t = (row + r) / view.group;
    const int32_t b = view.begin(t, start), e = view.end(t, start);
    low[r] = b > begin ? b : begin;
    high[r] = e < end ? e : end;
    common_begin = low[r] > common_begin ? low[r] : common_begin;
    common_end = high[r] < common_end ? high[r] : common_end;
  }
  if (common_begin >= common_end) {
    for (int32_t r = 0; r < rows; ++r) {
      if (low[r] >= high[r]) continue;
      accumulate(1, weights + r * stride, stride, values, low[r], high[r], dim,
                 out + int64_t{r} * dim, dim);
    }
    return;
  }
  for (int32_t r = 0; r < rows; ++r) {
    if (low[r] < common_begin) {
      accumulate(1, weights + r * stride, stride, values, low[r], common_begin, dim,
                 out + int64_t{r} * dim, dim);
    }
  }
  accumulate(rows, weights, stride, values, common_begin, common_end, dim, out, dim);
  for (int32_t r = 0; r < rows; ++r) {
    if (common_end < high[r]) {
      accumulate(1, weights + r * stride, stride, values, common_end, high[r], dim,
                 out + int64_t{r} * dim, dim);
    }
  }
}

// Tokens of a page that are taken for all KV heads before the next ones, and the bytes that are
// asked for ahead of use: several times what memory delivers in the time that it takes to answer,
// and little enough that an item's first bytes, which nobody asked for in time, are few.
constexpr int32_t kWalkStep = 16;
constexpr int64_t kAheadBytes = 8192;

// Few rows: keys and values go from the pages into registers, all of the item's KV heads for
// each step of tokens, so that memory is read in its order; what comes next is asked for
// meanwhile.
template <class Format>
struct FewRows {
  using Pool = PoolRows<Format>;
  const View& view;
  float* queries;
  float* scores;
  int32_t heads;

  // One of the two pools, and the tokens of it that a partition needs.
  struct Part {
    const void* pool;
    int32_t dim, first, last;
  };

  Pool rows_at(const Part& part, int64_t slot, int32_t head) const {
    return Pool::at(part.pool, slot, view.call.kv_heads, view.item.first_head + head, part.dim);
  }

  // Where a step stands in memory; null where there is none.
  const char* step_at(const Part& part, int32_t position) const {
    if (position >= part.last) return nullptr;
    return reinterpret_cast<const char*>(rows_at(part, view.slot(position), 0).data);
  }

  // Asks for the first keys of an item, which no walk before it asks for.
  [[gnu::always_inline]] void begin(int32_t first, int32_t last) const {
    const auto& a = view.call;
    const int32_t step = a.block_size < kWalkStep ? a.block_size : kWalkStep;
    const Part keys{a.key_pool, a.k_dim, first, last};
    const int64_t bytes = int64_t{heads} * a.k_dim * sizeof(typename Format::Element);
    const int64_t stride = int64_t{a.kv_heads} * a.k_dim * sizeof(typename Format::Element);
    int64_t asked = 0;
    for (int32_t at = first / step * step; at < last && asked < kAheadBytes; at += step) {
      const char* rows = step_at(keys, at);
      for (int32_t t = 0; t < step; ++t, asked += bytes) {
        for (int64_t b = 0; b < bytes; b += 64) __builtin_prefetch(rows + t * stride + b, 0, 2);
      }
    }
  }

  // Calls body(rows, position, head) for all steps and heads of a part, in the order of memory.
  // `then` is the part that will be walked next.
  template <class Body>
  void walk(const Part& part, const Part& then, const Body& body) const {
    const int32_t step = view.call.block_size < kWalkStep ? view.call.block_size : kWalkStep;
    const int32_t first = part.first / step * step;
    const int32_t end = (part.last + step - 1) / step * step;
    // What comes `ahead` heads later is asked for: steps, and heads of the step after them.
    const int64_t row_bytes = int64_t{part.dim} * sizeof(typename Format::Element);
    const auto ahead =
        static_cast<int32_t>((kAheadBytes + step * row_bytes - 1) / (step * row_bytes));
    const int32_t ahead_heads = ahead % heads;
    const auto later = [&](int32_t position) {
      if (position < end) return step_at(part, position);
      return step_at(then, then.first / step * step + (position - end));
    };
    int32_t later_at = first + ahead / heads * step;
    const char* near = later(later_at);
    for (int32_t at = first; at < part.last; at += step) {
      later_at += step;
      const char* far = later(later_at);
      const Pool rows = rows_at(part, view.slot(at), 0);
      for (int32_t h = 0; h < heads; ++h) {
        Pool mine{rows.data + h * part.dim, rows.stride};
        const int32_t later_head = h + ahead_heads;
        const char* to = later_head < heads ? near : far;
        const int32_t head = later_head < heads ? later_head : later_head - heads;
        if (to) mine.ahead = to + head * row_bytes - reinterpret_cast<const char*>(mine.data);
        body(mine, at, h);
      }
      near = far;
    }
  }

  void partition(int32_t start, int32_t first, int32_t last, int32_t next_last,
                 const Partials& out) {
    const auto& a = view.call;
    const int32_t rows = view.rows;
    const int32_t step = a.block_size < kWalkStep ? a.block_size : kWalkStep;
    const Part keys{a.key_pool, a.k_dim, first, last};
    const Part values{a.value_pool, a.v_dim, first, last};
    const Part next_keys{a.key_pool, a.k_dim, last, next_last};
    walk(keys, values, [&](const Pool& key_rows, int32_t at, int32_t h) {
      for (int32_t t = 0; t < step && at + t < last; t += kScoreStep) {
        for (int32_t r = 0; r < rows; r += kRowBlock) {
          const int64_t row = int64_t{h} * rows + r;
          score(rows - r < kRowBlock ? rows - r : kRowBlock, queries + row * a.k_dim,
                key_rows.from(t), a.k_dim, scores + row * view.partition + (at + t - start),
                view.partition);
        }
      }
    });
    for (int32_t h = 0; h < heads; ++h) {
      for (int32_t r = 0; r < rows; ++r) {
        const int64_t row = int64_t{h} * rows + r;
        softmax_seen(view, start, r, scores + row * view.partition, out, row);
      }
    }
    set_zero(out.out, int64_t{heads} * rows * a.v_dim);
    walk(values, next_keys, [&](const Pool& value_rows, int32_t at, int32_t h) {
      // Tokens count from the partition's start, as the weights do.
      const Pool from_start = value_rows.from(start - at);
      const int32_t from = at > first ? at : first;
      const int32_t to = at + step < last ? at + step : last;
      for (int32_t r = 0; r < rows; r += kRowBlock) {
        const int64_t row = int64_t{h} * rows + r;
        accumulate_seen(view, start, r, rows - r < kRowBlock ? rows - r : kRowBlock,
                        scores + row * view.partition, from_start, from - start, to - start,
                        out.out + row * a.v_dim);
      }
    });
  }
};

// Many rows of one KV head: a partition's keys, then its values, become floats once, and blocks
// of rows go over blocks of tokens that fit L1.
template <class Format>
struct ManyRows {
  using Pool = PoolRows<Format>;
  const View& view;
  float* queries;
  float* scores;
  float* buffer;  // [partition, the larger of the padded dims]

  static constexpr int32_t kScoreTokens = 16;
  static constexpr int32_t kValueTokens = 64;

  FloatRows to_floats(const void* pool, int32_t dim, int32_t start, int32_t first, int32_t last) {
    const int64_t stride = (dim + kWideLanes - 1) / kWideLanes * kWideLanes;
    const auto& a = view.call;
    for (int32_t at = first; at < last;) {
      const int32_t page_end = (at / a.block_size + 1) * a.block_size;
      const int32_t end = page_end < last ? page_end : last;
      Pool rows = Pool::at(pool, view.slot(at), a.kv_heads, view.item.first_head, dim);
      if (end < last) {
        const Pool later = Pool::at(pool, view.slot(end), a.kv_heads, view.item.first_head, dim);
        rows.ahead = reinterpret_cast<intptr_t>(later.data) - reinterpret_cast<intptr_t>(rows.data);
      }
      for (int32_t t = 0; at < end; ++at, ++t) {
        float* out = buffer + (at - start) * stride;
        int32_t d = 0;
        for (; d + kWideLanes <= dim; d += kWideLanes) {
          store(out + d, rows.load16(t, d));
          rows.prefetch(t, d);
        }
        if (d < dim) store(out + d, rows.load8(t, d));
      }
    }
    return {buffer, stride};
  }

  void partition(int32_t start, int32_t first, int32_t last, const Partials& part) {
    const auto& a = view.call;
    const int32_t rows = view.rows;
    const int32_t from = first / kScoreStep * kScoreStep;
    const FloatRows keys = to_floats(a.key_pool, a.k_dim, start, from, last);
    for (int32_t t = from - start; t < last - start; t += kScoreTokens) {
      for (int32_t r = 0; r < rows; r += kRowBlock) {
        const int32_t count = rows - r < kRowBlock ? rows - r : kRowBlock;
        const int32_t begin = view.begin(r / view.group, start);
        const int32_t end = view.end((r + count - 1) / view.group, start);
        for (int32_t u = t; u < t + kScoreTokens && u < end; u += kScoreStep) {
          if (u + kScoreStep <= begin) continue;
          score(count, queries + int64_t{r} * a.k_dim, keys.from(u), a.k_dim,
                scores + int64_t{r} * view.partition + u, view.partition);
        }
      }
    }
    for (int32_t r = 0; r < rows; ++r) {
      softmax_seen(view, start, r, scores + int64_t{r} * view.partition, part, r);
    }
    set_zero(part.out, int64_t{rows} * a.v_dim);
    const FloatRows values = to_floats(a.value_pool, a.v_dim, start, first, last);
    for (int32_t t = first - start; t < last - start; t += kValueTokens) {
      const int32_t to = t + kValueTokens < last - start ? t + kValueTokens : last - start;
      for (int32_t r = 0; r < rows; r += kRowBlock) {
        accumulate_seen(view, start, r, rows - r < kRowBlock ? rows - r : kRowBlock,
                        scores + int64_t{r} * view.partition, values, t, to,
                        part.out + int64_t{r} * a.v_dim);
      }
    }
  }
};

template <class Format>
static void attend_as(const AttentionWork& work, const AttentionItem& item, float* scratch) {
  const View view(work, item);
  const auto& a = view.call;
  const int32_t heads = item.last_head - item.first_head;
  const int64_t rows = int64_t{heads} * view.rows;
  float* queries = scratch;
  float* scores = queries + rows * a.k_dim;
  const Partials part = partials_at(scores + rows * view.partition, rows, a.v_dim);
  const Partials state = partials_at(part.out + rows * (a.v_dim + 2), rows, a.v_dim);
  float* buffer = state.out + rows * (a.v_dim + 2);
  // Whole cache lines; the planner leaves room for it.
  buffer += (64 - (reinterpret_cast<uintptr_t>(buffer) & 63)) / sizeof(float) % 16;

  const auto head_of = [&](int64_t row) {
    return (item.first_head + static_cast<int32_t>(row / view.rows)) * view.group +
           static_cast<int32_t>(row % view.rows) % view.group;
  };
  const auto token_of = [&](int64_t row) {
    return static_cast<int32_t>(row % view.rows) / view.group;
  };
  const int32_t last_position = view.first_position + view.tokens - 1;
  const int64_t low = a.window > 0 ? int64_t{view.first_position} - a.window + 1 : 0;
  if (item.few_rows) {
    const int32_t start = item.first_partition * view.partition;
    FewRows<Format>{view, queries, scores, heads}.begin(
        low > start ? static_cast<int32_t>(low) : start, last_position + 1);
  }
  for (int64_t r = 0; r < rows; ++r) {
    load_query(a, view.first_token + token_of(r), head_of(r), queries + r * a.k_dim);
    if (item.partials < 0) begin_row(a, state, r, head_of(r));
  }
  for (int32_t p = item.first_partition; p < item.last_partition; ++p) {
    const int32_t start = p * view.partition;
    const int32_t first = low > start ? static_cast<int32_t>(low) : start;
    const int32_t last =
        last_position + 1 < start + view.partition ? last_position + 1 : start + view.partition;
    if (item.few_rows) {
      const bool more = p + 1 < item.last_partition;
      FewRows<Format>{view, queries, scores, heads}.partition(
          start, first, last, more ? last_position + 1 : last, part);
    } else {
      ManyRows<Format>{view, queries, scores, buffer}.partition(start, first, last, part);
    }
    if (item.partials < 0) {
      for (int64_t r = 0; r < rows; ++r) fold(state, r, part, r, a.v_dim);
      continue;
    }
    const int64_t all_rows = int64_t{view.tokens} * a.heads;
    const Partials kept =
        partials_at(work.partials + item.partials +
                        (p - item.tile_partition) * all_rows * (int64_t{a.v_dim} + 2),
                    all_rows, a.v_dim);
    for (int64_t r = 0; r < rows; ++r) {
      const int64_t to = int64_t{token_of(r)} * a.heads + head_of(r);
      kept.max[to] = part.max[r];
      kept.sum[to] = part.sum[r];
      __builtin_memcpy(kept.out + to * a.v_dim, part.out + r * a.v_dim,
                       static_cast<std::size_t>(a.v_dim) * sizeof(float));
    }
  }
  if (item.partials >= 0) return;
  for (int64_t r = 0; r < rows; ++r) {
    end_row(a, state, r, view.first_token + token_of(r), head_of(r));
  }
}

static void attend(const AttentionWork& work, const AttentionItem& item, float* scratch) {
  switch (work.call->pool_dtype) {
    case Dtype::float32:
      return attend_as<Float32>(work, item, scratch);
    case Dtype::float16:
      return attend_as<Float16>(work, item, scratch);
    case Dtype::bfloat16:
      return attend_as<BFloat16>(work, item, scratch);
  }
}

// Folds what several items left of the same query rows, and writes their output.
static void fold_partials(const AttentionWork& work, const AttentionFold& f, float* scratch) {
  const auto& a = *work.call;
  const int64_t rows = int64_t{f.end - f.begin} * a.heads;
  const Partials state = partials_at(scratch, 1, a.v_dim);
  for (int32_t t = 0; t < f.end - f.begin; ++t) {
    for (int32_t head = f.first_head; head < f.last_head; ++head) {
      begin_row(a, state, 0, head);
      for (int32_t p = 0; p < f.partitions; ++p) {
        const Partials part = partials_at(
            work.partials + f.partials + p * rows * (int64_t{a.v_dim} + 2), rows, a.v_dim);
        fold(state, 0, part, int64_t{t} * a.heads + head, a.v_dim);
      }
      end_row(a, state, 0, a.query_starts[f.sequence] + f.begin + t, head);
    }
  }
}

// ---- writing new rows ---------------------------------------------------------------------------

template <class Row, class Pool>
static void write_pool(const PagedAttention& a, const Rows& rows, int32_t dim, void* pool,
                       int32_t sequence, int32_t begin, int32_t end) {
  auto* out = static_cast<typename Pool::Element*>(pool);
  const auto* in = static_cast<const typename Row::Element*>(rows.data);
  const int32_t start = a.query_starts[sequence];
  const int32_t queries = a.query_starts[sequence + 1] - start;
  const int32_t* table = a.block_tables + int64_t{sequence} * a.max_blocks;
  for (int32_t i = begin; i < end; ++i) {
    const int32_t position = a.context_lens[sequence] - queries + i;
    const int64_t slot =
        int64_t{table[position / a.block_size]} * a.block_size + position % a.block_size;
    for (int32_t h = 0; h < a.kv_heads; ++h) {
      auto* to = out + (slot * a.kv_heads + h) * dim;
      const auto* from = in + (start + i) * rows.token_stride + h * rows.head_stride;
      if constexpr (__is_same(Row, Pool)) {  // bits are copied, NaN and all
        if (rows.dim_stride == 1) {
          __builtin_memcpy(to, from, sizeof(*to) * static_cast<std::size_t>(dim));
        } else {
          for (int32_t d = 0; d < dim; ++d) to[d] = from[d * rows.dim_stride];
        }
      } else if (rows.dim_stride == 1) {
        for (int32_t d = 0; d < dim; d += 8) Pool::store8(to + d, Row::load8(from + d));
      } else {
        for (int32_t d = 0; d < dim; ++d) {
          Pool::store1(to + d, Row::load1(from + d * rows.dim_stride));
        }
      }
    }
  }
}

template <class Row, class Pool>
static void write_both(const PagedAttention& a, int32_t sequence, int32_t begin, int32_t end) {
  write_pool<Row, Pool>(a, a.keys, a.k_dim, a.key_pool, sequence, begin, end);
  write_pool<Row, Pool>(a, a.values, a.v_dim, a.value_pool, sequence, begin, end);
}

static void write_rows(const PagedAttention& a, int32_t sequence, int32_t begin, int32_t end) {
  if (a.dtype == a.pool_dtype) {
    if (a.dtype == Dtype::float32) return write_both<Float32, Float32>(a, sequence, begin, end);
    return write_both<Float16, Float16>(a, sequence, begin, end);  // either format: bits
  }
  if (a.pool_dtype == Dtype::float16) return write_both<Float32, Float16>(a, sequence, begin, end);
  write_both<Float32, BFloat16>(a, sequence, begin, end);
}
