// Sharing products out over the worker pool: rows to integers once, then blocks of rows x panels.
#include "cpu/linear/linear.hpp"

#include <algorithm>
#include <vector>

#include "core/status.hpp"
#include "cpu/isa/isa.hpp"
#include "cpu/linear/kernels.hpp"
#include "cpu/small/small.hpp"
#include "cpu/worker_pool.hpp"

namespace pamx::cpu {

namespace {

const LinearKernels& kernels_of_this_machine() {
  switch (isa()) {
#if defined(__x86_64__)
    case Isa::avx512:
      return avx512::linear_kernels;
    case Isa::avx2:
      return avx2::linear_kernels;
#elif defined(__aarch64__)
    case Isa::neon:
      return neon::linear_kernels;
#endif
    default:
      return portable::linear_kernels;
  }
}

// Rows that one pass takes: bounds the scratch for rounded activations.
constexpr int32_t kRowsAtOnce = 512;
// Rows of a block: a multiple of kTile, few enough that their activations stay in the L2 cache.
constexpr int32_t kBlockRows = 64;

// One pass: a call's products over up to kRowsAtOnce rows.
struct Pass {
  const float* x;
  int64_t x_stride;
  int32_t rows;
  Compute compute;
  const Product* products;
  int32_t count;
  const Matrix* up = nullptr;  // gated: products[0].matrix is the gate
  Gate gate = Gate::silu;

  const MatrixFormat& format() const { return products[0].matrix->format; }
};

// Which of Rounded's sums a matrix takes.
int32_t group_index(const MatrixFormat& f) {
  return f.group_size == 32 ? 0 : f.group_size == 64 ? 1 : 2;
}

bool is_fast(Compute compute, const Matrix& m) {
  return compute == Compute::fast && m.format.bits != 0;
}

// The rounded rows of a pass, in tiles one after the other; reused by the calling thread.
class Rounded {
 public:
  void prepare(const Pass& pass) {
    inputs_ = pass.format().inputs;
    rows_ = pass.rows;
    bool any = false;
    wanted_[0] = wanted_[1] = false;
    for (auto& used : groups_used_) used = false;
    for (int32_t i = 0; i < pass.count; ++i) note(pass.compute, *pass.products[i].matrix, &any);
    if (pass.up) note(pass.compute, *pass.up, &any);
    any_bad_ = false;
    if (!any) return;
    units_ = inputs_ / kUnit;
    const auto cells = static_cast<size_t>(rows_) * static_cast<size_t>(units_);
    for (int32_t wide = 0; wide < 2; ++wide) {
      if (!wanted_[wide]) continue;
      Digits& d = digits_[wide];
      grow(d.digits, cells * kUnit);
      if (wide) grow(d.low, cells * kUnit);
      grow(d.scales, cells);
      grow(d.totals, cells);
      for (int32_t g = 0; g < 3; ++g) {
        if (groups_used_[g]) grow(d.sums[g], cells >> g);
      }
    }
    grow(bad_, static_cast<size_t>(rows_));
    const LinearKernels& k = kernels_of_this_machine();
    const int32_t tiles = (rows_ + kTile - 1) / kTile;
    const auto round_rows = [&](int64_t item) {
      const int32_t first = static_cast<int32_t>(item) * kTile;
      const int32_t end = std::min(rows_, first + kTile);
      for (int32_t row = first; row < end; row += tile_rows(row)) {
        for (int32_t wide = 0; wide < 2; ++wide) {
          if (!wanted_[wide]) continue;
          Tile tile = tile_at(row, wide, 0);
          for (int32_t r = 0; r < tile.rows; ++r) {
            const float* x = pass.x + (row + r) * pass.x_stride;
            bad_[static_cast<size_t>(row + r)] = !k.quantise(x, inputs_, tile, r);
          }
          for (int32_t g = 0; g < 3; ++g) {
            if (!groups_used_[g]) continue;
            tile = tile_at(row, wide, g);
            k.sum_groups(inputs_, kUnit << g, tile);
          }
        }
      }
    };
    constexpr int64_t kWorthSharing = 16384;
    if (int64_t{rows_} * inputs_ >= kWorthSharing && tiles > 1) {
      worker_pool()->run(tiles, round_rows);
    } else {
      for (int32_t i = 0; i < tiles; ++i) round_rows(i);
    }
    for (int32_t r = 0; r < rows_; ++r) any_bad_ |= bad_[static_cast<size_t>(r)] != 0;
  }

  // Rows of the tile that begins at `row`: what is left of a pass is cut into 8s, a 4, a 2, a 1.
  int32_t tile_rows(int32_t row) const {
    const int32_t left = rows_ - row;
    return left >= 8 ? 8 : left >= 4 ? 4 : left >= 2 ? 2 : 1;
  }

  Tile tile_of(const Matrix& m, int32_t row) { return tile_at(row, m.wide, group_index(m.format)); }

  bool any_bad() const { return any_bad_; }
  bool bad(int32_t row) const { return any_bad_ && bad_[static_cast<size_t>(row)]; }

 private:
  struct Digits {
    std::vector<int8_t> digits, low;
    std::vector<float> scales, sums[3];
    std::vector<int32_t> totals;
  };

  template <typename T>
  static void grow(std::vector<T>& v, size_t size) {
    if (v.size() < size) v.resize(size);
  }

  void note(Compute compute, const Matrix& m, bool* any) {
    if (!is_fast(compute, m)) return;
    *any = true;
    wanted_[m.wide] = true;
    groups_used_[group_index(m.format)] = true;
  }

  Tile tile_at(int32_t row, bool wide, int32_t group) {
    Digits& d = digits_[wide];
    const int64_t at = int64_t{row} * units_;
    return {tile_rows(row),
            d.digits.data() + at * kUnit,
            wide ? d.low.data() + at * kUnit : nullptr,
            d.scales.data() + at,
            d.totals.data() + at,
            d.sums[group].data() + (int64_t{row} * (units_ >> group))};
  }

  int32_t inputs_ = 0, rows_ = 0, units_ = 0;
  bool wanted_[2] = {};  // one digit, two digits
  bool groups_used_[3] = {};
  bool any_bad_ = false;
  Digits digits_[2];
  std::vector<uint8_t> bad_;
};

// sums[r * stride + lane] for the rows and panels of a block; exact or dense ones need scratch.
void compute_block(const Pass& pass, const Matrix& m, Rounded& rounded, int32_t row, int32_t rows,
                   int32_t panel, int32_t panels, float* sums, int64_t stride) {
  const LinearKernels& k = kernels_of_this_machine();
  if (!is_fast(pass.compute, m)) {
    static thread_local std::vector<float> scratch;
    if (scratch.empty()) scratch.resize(kExactScratch + 16);
    // A line's alignment matters to 64-byte loads.
    auto* aligned = reinterpret_cast<float*>((reinterpret_cast<uintptr_t>(scratch.data()) + 63) &
                                             ~uintptr_t{63});
    k.exact(m, panel, panels, rows, pass.x + row * pass.x_stride, pass.x_stride, sums, stride,
            aligned);
    return;
  }
  for (int32_t i = 0; i < panels; ++i) {
    for (int32_t r = 0; r < rows;) {
      const Tile tile = rounded.tile_of(m, row + r);
      k.fast(m, panel + i, tile, sums + r * stride + i * kPanel, stride);
      r += tile.rows;
    }
  }
}

// Computes a block of rows and panels of one product and writes its outputs.
void run_block(const Pass& pass, const Product& product, Rounded& rounded, int32_t row,
               int32_t rows, int32_t panel, int32_t panels) {
  constexpr int64_t kStride = kPanelsAtOnce * kPanel;
  alignas(64) float sums[kBlockRows * kStride];
  alignas(64) float up_sums[kBlockRows * kStride];
  const LinearKernels& k = kernels_of_this_machine();
  const Matrix& m = *product.matrix;
  const int32_t column = panel * kPanel;
  const int32_t columns = std::min(panels * kPanel, m.format.outputs - column);
  const bool bad = rounded.any_bad();
  compute_block(pass, m, rounded, row, rows, panel, panels, sums, kStride);
  if (pass.up) compute_block(pass, *pass.up, rounded, row, rows, panel, panels, up_sums, kStride);
  // Rows that could not be rounded are left alone here: they are computed again, in float32.
  const int32_t step = bad ? 1 : rows;
  for (int32_t r = 0; r < rows; r += step) {
    if (bad && rounded.bad(row + r)) continue;
    float* out = product.out + (row + r) * product.out_stride + column;
    const float* bias = m.bias ? m.bias + column : nullptr;
    if (!pass.up) {
      const float* residual = product.residual
                                  ? product.residual + (row + r) * product.residual_stride + column
                                  : nullptr;
      k.finish(sums + r * kStride, kStride, step, columns, bias, product.scale, residual,
               product.residual_stride, out, product.out_stride);
      continue;
    }
    const float* up_bias = pass.up->bias ? pass.up->bias + column : nullptr;
    float* gate_row = sums + r * kStride;
    float* up_row = up_sums + r * kStride;
    if (bias) {
      k.finish(gate_row, kStride, step, columns, bias, 1.0f, nullptr, 0, gate_row, kStride);
    }
    if (up_bias) {
      k.finish(up_row, kStride, step, columns, up_bias, 1.0f, nullptr, 0, up_row, kStride);
    }
    for (int32_t i = 0; i < step; ++i) {
      row_kernels().gate(pass.gate, gate_row + i * kStride, up_row + i * kStride, columns,
                         out + i * product.out_stride);
    }
  }
}

// Nanoseconds that a panel takes for some rows, roughly: enough to cut work into even pieces.
double panel_cost(const Pass& pass, const Matrix& m, int32_t rows) {
  const double bytes = static_cast<double>(m.format.panel_bytes());
  const double products = static_cast<double>(m.format.inputs) * kPanel * rows;
  return std::max(bytes / 15.0, products / (is_fast(pass.compute, m) ? 100.0 : 40.0));
}

// Returns the rows that `fast` cannot represent, and whose outputs were left alone.
std::vector<int32_t> run(const Pass& pass) {
  static thread_local Rounded rounded;
  rounded.prepare(pass);
  const auto pool = worker_pool();
  const int32_t blocks = (pass.rows + kBlockRows - 1) / kBlockRows;
  const int32_t block_rows = ((pass.rows + blocks - 1) / blocks + kTile - 1) / kTile * kTile;

  double costs[kMaxProducts], total = 0.0;
  for (int32_t i = 0; i < pass.count; ++i) {
    const Matrix& m = *pass.products[i].matrix;
    costs[i] = panel_cost(pass, m, std::min(block_rows, pass.rows));
    if (pass.up) costs[i] += panel_cost(pass, *pass.up, std::min(block_rows, pass.rows));
    total += costs[i] * m.format.panels() * blocks;
  }
  // A few items for each thread, of 4 to 32 microseconds.
  const double item_cost = std::clamp(total / (4.0 * pool->num_threads()), 4e3, 32e3);
  int32_t panels_per_item[kMaxProducts];
  int64_t ends[kMaxProducts], items = 0;
  for (int32_t i = 0; i < pass.count; ++i) {
    const int32_t panels = pass.products[i].matrix->format.panels();
    panels_per_item[i] = std::clamp(static_cast<int32_t>(item_cost / costs[i]), 1, panels);
    items += int64_t{blocks} * ((panels + panels_per_item[i] - 1) / panels_per_item[i]);
    ends[i] = items;
  }
  Rounded* const shared = &rounded;  // the workers' own are others
  pool->run(items, [&, shared](int64_t item) {
    int32_t i = 0;
    while (item >= ends[i]) ++i;
    const int64_t local = item - (i ? ends[i - 1] : 0);
    // Blocks of rows vary fastest: an item's panels are still in the cache for the next one.
    const int32_t row = static_cast<int32_t>(local % blocks) * block_rows;
    const int32_t rows = std::min(block_rows, pass.rows - row);
    const Product& product = pass.products[i];
    const int32_t first = static_cast<int32_t>(local / blocks) * panels_per_item[i];
    const int32_t end = std::min(product.matrix->format.panels(), first + panels_per_item[i]);
    if (rows <= 0) return;
    for (int32_t panel = first; panel < end; panel += kPanelsAtOnce) {
      run_block(pass, product, *shared, row, rows, panel, std::min(kPanelsAtOnce, end - panel));
    }
  });
  std::vector<int32_t> left;
  if (rounded.any_bad()) {
    for (int32_t r = 0; r < pass.rows; ++r) {
      if (rounded.bad(r)) left.push_back(r);
    }
  }
  return left;
}

// Cuts a call into passes; the rows that `fast` left alone follow in float32.
void run_all(const Pass& call) {
  Product products[kMaxProducts];
  const auto run_rows = [&](int32_t first, int32_t rows, Compute compute) {
    Pass pass = call;
    pass.x += first * call.x_stride;
    pass.rows = rows;
    pass.compute = compute;
    pass.products = products;
    for (int32_t i = 0; i < call.count; ++i) {
      products[i] = call.products[i];
      products[i].out += first * products[i].out_stride;
      if (products[i].residual) products[i].residual += first * products[i].residual_stride;
    }
    return run(pass);
  };
  for (int32_t first = 0; first < call.rows; first += kRowsAtOnce) {
    const int32_t rows = std::min(kRowsAtOnce, call.rows - first);
    for (const int32_t r : run_rows(first, rows, call.compute)) {
      run_rows(first + r, 1, Compute::exact);
    }
  }
}

}  // namespace

Matrix slice(const Matrix& m, int32_t begin, int32_t outputs) {
  require(begin >= 0 && begin % kPanel == 0 && outputs >= 1 &&
              int64_t{begin} + outputs <= m.format.outputs,
          "outputs " + std::to_string(begin) + " to " + std::to_string(int64_t{begin} + outputs) +
              " are no panels of a matrix with " + std::to_string(m.format.outputs));
  Matrix part = m;
  part.format.outputs = outputs;
  part.panels += begin / kPanel * m.format.panel_bytes();
  if (part.bias) part.bias += begin;
  return part;
}

void multiply(const float* x, int64_t x_stride, int32_t rows, Compute compute,
              const Product* products, int32_t count) {
  if (rows <= 0 || count <= 0) return;
  run_all({x, x_stride, rows, compute, products, count});
}

void multiply_gated(const float* x, int64_t x_stride, int32_t rows, Compute compute,
                    const Matrix& gate, const Matrix& up, Gate kind, float* out,
                    int64_t out_stride) {
  if (rows <= 0) return;
  const Product product{&gate, out, out_stride};
  run_all({x, x_stride, rows, compute, &product, 1, &up, kind});
}

}  // namespace pamx::cpu
