// The small operations of a decoder layer: norms, rotary positions and gates. No MLX.
//
// Rows come in float32, float16 or bfloat16, in any strides; arithmetic is in float32 and a
// result is rounded once, as it is written. A row's bits depend on that row alone: sums run over
// sixteen lanes in one order, whatever the number of rows or threads.
#pragma once

#include <cstdint>

#include "core/dtype.hpp"
#include "cpu/gate.hpp"
#include "cpu/small/rope.hpp"
#include "cpu/worker_pool.hpp"

namespace pamx::cpu {

// Kernels for one instruction set, for one row of n elements. `out` may be an input.
struct RowKernels {
  void (*to_float)(const void* in, Dtype, int64_t stride, int32_t n, float* out);
  void (*from_float)(const float* in, int32_t n, Dtype, void* out);
  // weight and bias may be null: 1 and 0.
  void (*rms_norm)(const float* x, const float* weight, float eps, int32_t n, float* out);
  void (*layer_norm)(const float* x, const float* weight, const float* bias, float eps, int32_t n,
                     float* out);
  // Rotates the first 2 * pairs elements of x in place by the angles whose cosines and sines
  // are given; the two elements of a pair are neighbours (traditional) or `pairs` apart.
  void (*rotate)(float* x, const float* cosines, const float* sines, int32_t pairs,
                 bool traditional);
  // act(gate) * up; up may be null: act(gate)
  void (*gate)(Gate, const float* gate, const float* up, int32_t n, float* out);
  // out = x + scale * y
  void (*add_scaled)(const float* x, float scale, const float* y, int32_t n, float* out);
};

namespace portable {
extern const RowKernels row_kernels;
}
namespace neon {
extern const RowKernels row_kernels;
}
namespace avx2 {
extern const RowKernels row_kernels;
}
namespace avx512 {
extern const RowKernels row_kernels;
}

// The kernels for this process's instruction set.
const RowKernels& row_kernels();

// A tensor seen as rows along its last axis; strides count elements.
struct RowView {
  static constexpr int32_t kMaxAxes = 8;

  const void* data = nullptr;
  Dtype dtype = Dtype::float32;
  int32_t width = 0;   // length of the last axis
  int64_t stride = 1;  // of the last axis
  int32_t axes = 0;    // the others, outermost first
  int64_t lengths[kMaxAxes] = {};
  int64_t strides[kMaxAxes] = {};

  int64_t rows() const;
  const void* row(int64_t index) const;
};

// Row `index` as consecutive float32: where it lies, or converted into `buffer` of width floats.
const float* float_row(const RowView& view, int64_t index, float* buffer);

// Calls body(begin, end) on parts of [0, rows) on the worker pool, or on this thread if a second
// one would not pay; a part holds about `kPartElements` elements.
constexpr int64_t kPartElements = 16384;
template <class Body>
void for_rows(int64_t rows, int64_t width, const Body& body) {
  const int64_t step = width >= kPartElements ? 1 : kPartElements / width;
  const int64_t parts = (rows + step - 1) / step;
  if (parts <= 1) return body(int64_t{0}, rows);
  worker_pool()->run(
      parts, [&](int64_t i) { body(i * step, (i + 1) * step < rows ? (i + 1) * step : rows); });
}

enum class NormKind : int32_t { none, rms, layer };

// Outputs are row-contiguous. A view whose data is null stands for an argument not given.
struct NormCall {
  NormKind kind = NormKind::rms;
  float eps = 0.0f;
  RowView x;
  RowView weight;  // one row
  RowView bias;    // one row
  Dtype out_dtype = Dtype::float32;
  void* out = nullptr;
};
void run(const NormCall& call);

struct GateCall {
  Gate kind = Gate::silu;
  RowView gate;
  RowView up;
  Dtype out_dtype = Dtype::float32;
  void* out = nullptr;
};
void run(const GateCall& call);

// x is [batch, ..., length, width]: the row (b, ..., t) stands at position offset + t, or
// offsets[b] + t.
struct RopeCall {
  const Rope* rope = nullptr;
  RowView x;
  int32_t batch = 0;
  int32_t length = 0;
  int32_t offset = 0;
  const int32_t* offsets = nullptr;
  int64_t offsets_stride = 0;  // 0: one offset for every row of the batch
  void* out = nullptr;         // in x's dtype
};
void run(const RopeCall& call);

}  // namespace pamx::cpu
