// Linear layers on packed weights: what the rest of the library calls.
//
// Everything goes in and out as float32 rows. A row of a result depends on that row of the input
// alone, bit for bit: not on how many rows the call has, nor on threads, tiles or instruction
// set.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "core/dtype.hpp"
#include "cpu/gate.hpp"
#include "cpu/memory.hpp"

namespace pamx::cpu {

enum class Compute : int32_t {
  fast,   // quantised weights meet activations that were rounded to int8, 32 at a time
  exact,  // float32 activations
};

// Outputs that are packed together: see pack.cpp for the layout.
constexpr int32_t kPanel = 16;

// The most outputs or inputs of a matrix: far above any model's, and low enough that its bytes, and
// the elements of the rows that are multiplied at a time, can be counted.
constexpr int32_t kLargestSide = 1 << 21;

struct MatrixFormat {
  int32_t outputs = 0;
  int32_t inputs = 0;
  int32_t bits = 0;                   // 2, 3, 4, 6 or 8; 0: dense
  int32_t group_size = 0;             // 32, 64 or 128; 0: dense
  Dtype scale_type = Dtype::float32;  // of scales and biases; of the elements when dense

  int32_t panels() const { return (outputs + kPanel - 1) / kPanel; }
  int64_t scale_bytes() const { return 2 * kPanel * size_of(scale_type); }  // one group's
  int64_t panel_bytes() const {
    if (bits == 0) return int64_t{inputs} * kPanel * size_of(scale_type);
    return inputs / group_size * (scale_bytes() + int64_t{group_size} * bits * kPanel / 8);
  }
  int64_t bytes() const { return panels() * panel_bytes(); }
};

// Throws when there is no such format.
void check(const MatrixFormat&);

// From and to MLX's arrays: weight is uint32 [outputs, inputs * bits / 32] (dense: elements of
// `type` [outputs, inputs]), scales and biases are [outputs, inputs / group_size] of `type`.
// Packing throws when a value does not fit the format's scale_type exactly; unpacking gives the
// same bits again.
void pack(const MatrixFormat&, const void* weight, const void* scales, const void* biases,
          Dtype type, uint8_t* panels);
void unpack(const MatrixFormat&, const uint8_t* panels, void* weight, void* scales, void* biases,
            Dtype type);

struct Matrix {
  MatrixFormat format;
  const uint8_t* panels = nullptr;
  const float* bias = nullptr;  // [outputs] or null
  bool wide = false;  // in `fast`, activations keep 15 bits instead of 8: for the output head
  std::shared_ptr<const void> memory;  // what `panels` and `bias` lie in
};

// The outputs [begin, begin + outputs) of a matrix, for fused projections; begin is a multiple of
// kPanel.
Matrix slice(const Matrix&, int32_t begin, int32_t outputs);

// out = (x W^T + bias) * scale + residual. `out` may be `residual`, but not overlap the input.
struct Product {
  const Matrix* matrix = nullptr;
  float* out = nullptr;
  int64_t out_stride = 0;
  const float* residual = nullptr;  // or null
  int64_t residual_stride = 0;
  float scale = 1.0f;
};

constexpr int32_t kMaxProducts = 8;

// Several matrices over the same input, in one parallel region. x is [rows, inputs], one row
// every x_stride floats.
void multiply(const float* x, int64_t x_stride, int32_t rows, Compute, const Product* products,
              int32_t count);

// out = act(x G^T + bg) * (x U^T + bu); the matrices have one shape, their formats may differ.
void multiply_gated(const float* x, int64_t x_stride, int32_t rows, Compute, const Matrix& gate,
                    const Matrix& up, Gate, float* out, int64_t out_stride);

// Rows of W as mx.dequantize gives them for scales of type `arithmetic`, in float32. Ids are in
// [0, outputs).
void embed(const Matrix&, const int32_t* ids, int32_t count, Dtype arithmetic, float* out,
           int64_t out_stride);

}  // namespace pamx::cpu

// The handle that C holds; operations that were queued keep their own share.
struct pamx_matrix {
  std::shared_ptr<const pamx::cpu::Matrix> matrix;
};
