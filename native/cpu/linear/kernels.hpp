// What an instruction set provides for linear layers.
#pragma once

#include "cpu/linear/linear.hpp"

namespace pamx::cpu {

// Inputs that are rounded together in `fast`.
constexpr int32_t kUnit = 32;
// `fast` takes rows in tiles of 8, then 4, 2 and 1 for what is left.
constexpr int32_t kTile = 8;
// Panels that one call of `exact` may take, and floats of scratch that it needs.
constexpr int32_t kPanelsAtOnce = 4;
constexpr int32_t kDepthAtOnce = 1024;
constexpr int32_t kExactScratch = 2 * kPanel * kDepthAtOnce;

// A tile of R rows whose values were rounded to integers: value k of unit u of row r is
// digits[(u * R + r) * 32 + k] * scales[u * R + r]. With two digits (`wide`), `low` holds the
// lower one, and the integer is digits * 128 + low.
struct Tile {
  int32_t rows;
  int8_t* digits;
  int8_t* low;      // or null
  float* scales;    // [units, R]
  int32_t* totals;  // [units, R], sums of the integers
  float* sums;      // [groups, R], sums of the values over a matrix's groups
};

struct LinearKernels {
  // Rounds a row into place r of a tile. False, and zeros there, when a value is not finite, or
  // so large that float32 could overflow on the way.
  bool (*quantise)(const float* x, int32_t inputs, const Tile&, int32_t r);
  // Fills in the sums of a tile.
  void (*sum_groups)(int32_t inputs, int32_t group_size, const Tile&);
  // out[r * out_stride + lane] for one panel of a quantised matrix.
  void (*fast)(const Matrix&, int32_t panel, const Tile&, float* out, int64_t out_stride);
  // The same in float32 for `panels` neighbours and any number of rows.
  void (*exact)(const Matrix&, int32_t panel, int32_t panels, int32_t rows, const float* x,
                int64_t x_stride, float* out, int64_t out_stride, float* scratch);
  // out = (sums + bias) * scale + residual, `count` columns.
  void (*finish)(const float* sums, int64_t sums_stride, int32_t rows, int32_t count,
                 const float* bias, float scale, const float* residual, int64_t residual_stride,
                 float* out, int64_t out_stride);
};

namespace portable {
extern const LinearKernels linear_kernels;
}
namespace avx2 {
extern const LinearKernels linear_kernels;
}
namespace avx512 {
extern const LinearKernels linear_kernels;
}
namespace neon {
extern const LinearKernels linear_kernels;
}

}  // namespace pamx::cpu
