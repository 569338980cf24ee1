// What the fused blocks have in common: norms that own their weights, and the way of rows of any
// format into float32 and, with the residual added, out again.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "core/status.hpp"
#include "cpu/linear/linear.hpp"
#include "cpu/small/small.hpp"

namespace pamx::cpu {

struct BlockNorm {
  NormKind kind = NormKind::none;
  float eps = 0.0f;
  int32_t size = 0;
  std::vector<float> weight;  // empty: 1
  std::vector<float> bias;    // empty: 0

  // Validates and copies; `name` goes into the message.
  static BlockNorm create(const pamx_norm& norm, const std::string& name);

  explicit operator bool() const { return kind != NormKind::none; }
  // Of `size` elements; out may be x.
  void apply(const float* x, float* out) const;
};

// Checks for descriptions.
Compute check_compute(int32_t compute);
std::shared_ptr<const Matrix> matrix_of(const pamx_matrix* matrix, const std::string& name,
                                        int32_t outputs, int32_t inputs);
void check_size(const BlockNorm& norm, const std::string& name, int32_t size);

// A block works on slabs of rows, so that its scratch stays bounded whatever the batch: as many
// rows as have this many floats, within limits that keep matrices busy. Results do not depend on
// it.
constexpr int64_t kSlabFloats = int64_t{8} << 20;
int64_t slab_rows(int64_t floats_per_row);

// At least `floats` of this thread's scratch, aligned to 64 bytes, valid until the next call.
float* scratch(int64_t floats);

// A slab of the input: in float32, and normalised.
struct SlabInput {
  const float* x = nullptr;
  int64_t x_stride = 0;
  const float* normed = nullptr;  // x itself without a norm
  int64_t normed_stride = 0;
};
// Buffers hold rows * x.width floats; x_buffer is used if x is not float32 rows already, and may
// be null otherwise.
bool is_float_rows(const RowView& x);
SlabInput read_slab(const RowView& x, int64_t begin, int64_t rows, const BlockNorm& norm,
                    float* x_buffer, float* normed_buffer);

// The end of a block: out = residual + scale * norm(y), where y = hidden W^T.
struct BlockOutput {
  const Matrix* matrix = nullptr;
  const BlockNorm* norm = nullptr;
  float scale = 1.0f;
  Compute compute = Compute::fast;
  Dtype dtype = Dtype::float32;
  void* out = nullptr;  // row-contiguous, matrix->format.outputs wide

  // Whether y needs a buffer, or can be written where it goes.
  bool is_direct() const { return dtype == Dtype::float32 && !*norm; }
};
// Rows [begin, begin + rows) of the output; residual may be null.
void write_slab(const BlockOutput& output, int64_t begin, int64_t rows, const float* hidden,
                int64_t hidden_stride, const float* residual, int64_t residual_stride,
                float* buffer);

}  // namespace pamx::cpu
