// Norms, scratch and the two ends of a fused block.
#include "cpu/block/block.hpp"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <new>

namespace pamx::cpu {

BlockNorm BlockNorm::create(const pamx_norm& norm, const std::string& name) {
  BlockNorm result;
  require(norm.kind >= PAMX_NORM_NONE && norm.kind <= PAMX_NORM_LAYER,
          name + " is of kind " + std::to_string(norm.kind) + ", which does not exist");
  result.kind = static_cast<NormKind>(norm.kind);
  if (!result) return result;
  require(std::isfinite(norm.eps) && norm.eps >= 0, name + "'s eps must be a number of at least 0");
  require(norm.size >= 1, name + " has size " + std::to_string(norm.size));
  require(!norm.bias || norm.kind == PAMX_NORM_LAYER, name + " is an rms norm with a bias");
  result.eps = norm.eps;
  result.size = norm.size;
  if (norm.weight) result.weight.assign(norm.weight, norm.weight + norm.size);
  if (norm.bias) result.bias.assign(norm.bias, norm.bias + norm.size);
  return result;
}

void BlockNorm::apply(const float* x, float* out) const {
  const float* w = weight.empty() ? nullptr : weight.data();
  if (kind == NormKind::rms) {
    row_kernels().rms_norm(x, w, eps, size, out);
  } else {
    row_kernels().layer_norm(x, w, bias.empty() ? nullptr : bias.data(), eps, size, out);
  }
}

Compute check_compute(int32_t compute) {
  require(compute == PAMX_FAST || compute == PAMX_EXACT,
          "there is no compute mode " + std::to_string(compute));
  return static_cast<Compute>(compute);
}

std::shared_ptr<const Matrix> matrix_of(const pamx_matrix* matrix, const std::string& name,
                                        int32_t outputs, int32_t inputs) {
  require(matrix != nullptr, "the " + name + " matrix is missing");
  const MatrixFormat& format = matrix->matrix->format;
  require(format.outputs == outputs && format.inputs == inputs,
          "the " + name + " matrix is [" + std::to_string(format.outputs) + ", " +
              std::to_string(format.inputs) + "] instead of [" + std::to_string(outputs) + ", " +
              std::to_string(inputs) + "]");
  return matrix->matrix;
}

void check_size(const BlockNorm& norm, const std::string& name, int32_t size) {
  require(!norm || norm.size == size,
          name + " has size " + std::to_string(norm.size) + " instead of " + std::to_string(size));
}

int64_t slab_rows(int64_t floats_per_row) {
  return std::clamp<int64_t>(kSlabFloats / floats_per_row, 64, 512);
}

float* scratch(int64_t floats) {
  struct Free {
    void operator()(float* p) const { std::free(p); }
  };
  static thread_local std::unique_ptr<float, Free> buffer;
  static thread_local int64_t size = 0;
  if (size < floats) {
    buffer.reset();
    size = 0;
    const auto bytes = static_cast<size_t>((floats + 15) / 16 * 64);
    buffer.reset(static_cast<float*>(std::aligned_alloc(64, bytes)));
    if (!buffer) throw std::bad_alloc();
    size = floats;
  }
  return buffer.get();
}

bool is_float_rows(const RowView& x) {
  return x.dtype == Dtype::float32 && x.stride == 1 && x.axes <= 1;
}

SlabInput read_slab(const RowView& x, int64_t begin, int64_t rows, const BlockNorm& norm,
                    float* x_buffer, float* normed_buffer) {
  const int64_t width = x.width;
  const bool in_place = is_float_rows(x);
  SlabInput slab;
  slab.x = in_place ? static_cast<const float*>(x.row(begin)) : x_buffer;
  slab.x_stride = in_place && x.axes == 1 ? x.strides[0] : width;
  slab.normed = norm ? normed_buffer : slab.x;
  slab.normed_stride = norm ? width : slab.x_stride;
  if (in_place && !norm) return slab;
  for_rows(rows, width, [&](int64_t first, int64_t last) {
    for (int64_t r = first; r < last; ++r) {
      if (!in_place) {
        row_kernels().to_float(x.row(begin + r), x.dtype, x.stride, x.width, x_buffer + r * width);
      }
      if (norm) norm.apply(slab.x + r * slab.x_stride, normed_buffer + r * width);
    }
  });
  return slab;
}

void write_slab(const BlockOutput& output, int64_t begin, int64_t rows, const float* hidden,
                int64_t hidden_stride, const float* residual, int64_t residual_stride,
                float* buffer) {
  const BlockNorm& norm = *output.norm;
  const int64_t width = output.matrix->format.outputs;
  char* out = static_cast<char*>(output.out) + begin * width * size_of(output.dtype);
  Product product;
  product.matrix = output.matrix;
  product.out = output.is_direct() ? reinterpret_cast<float*>(out) : buffer;
  product.out_stride = width;
  if (!norm) {
    product.scale = output.scale;
    product.residual = residual;
    product.residual_stride = residual_stride;
  }
  multiply(hidden, hidden_stride, static_cast<int32_t>(rows), output.compute, &product, 1);
  if (output.is_direct()) return;

  const RowKernels& k = row_kernels();
  const auto n = static_cast<int32_t>(width);
  const std::vector<float> zeros(residual ? 0 : static_cast<size_t>(width));
  for_rows(rows, width, [&](int64_t first, int64_t last) {
    for (int64_t r = first; r < last; ++r) {
      float* y = buffer + r * width;
      if (norm) {
        norm.apply(y, y);
        k.add_scaled(residual ? residual + r * residual_stride : zeros.data(), output.scale, y, n,
                     y);
      }
      k.from_float(y, n, output.dtype, out + r * width * size_of(output.dtype));
    }
  });
}

}  // namespace pamx::cpu
