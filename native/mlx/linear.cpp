// Matrices for C, and linear layers and embeddings as MLX primitives.
#include "cpu/linear/linear.hpp"

#include <algorithm>
#include <cmath>
#include <utility>
#include <vector>

#include "core/status.hpp"
#include "cpu/small/small.hpp"
#include "mlx/bridge.hpp"
#include "mlx/cpu_operation.hpp"
#include "mlx/dtype_utils.h"
#include "mlx/ops.h"
#include "mlx/pool.hpp"
#include "mlx/rows.hpp"

namespace pamx {

namespace mx = mlx::core;

namespace {

using MatrixRef = std::shared_ptr<const cpu::Matrix>;

cpu::MatrixFormat format_of(const pamx_matrix_format* f) {
  require(f != nullptr, "the matrix format is null");
  const cpu::MatrixFormat format{f->outputs, f->inputs, f->bits, f->group_size,
                                 dtype_of(f->scale_type, "scale_type")};
  cpu::check(format);
  return format;
}

MatrixRef create(const pamx_matrix_format* description, const pamx_memory* memory, int64_t offset,
                 const float* bias, bool wide) {
  const cpu::MatrixFormat format = format_of(description);
  require(memory != nullptr, "the memory is null");
  const int64_t room = memory->memory->bytes();
  require(offset >= 0 && offset % 64 == 0 && offset <= room && format.bytes() <= room - offset,
          "a matrix of " + std::to_string(format.bytes()) + " bytes at offset " +
              std::to_string(offset) + " does not fit memory of " + std::to_string(room) +
              " bytes on a line of 64");
  struct Owned {
    std::shared_ptr<cpu::Memory> memory;
    std::vector<float> bias;
  };
  auto owned = std::make_shared<Owned>(Owned{memory->memory, {}});
  if (bias) owned->bias.assign(bias, bias + format.outputs);
  auto matrix = std::make_shared<cpu::Matrix>();
  matrix->format = format;
  matrix->panels = memory->memory->data() + offset;
  matrix->bias = bias ? owned->bias.data() : nullptr;
  matrix->wide = wide;
  matrix->memory = owned;
  return matrix;
}

mx::Dtype mlx_dtype(Dtype dtype) {
  return dtype == Dtype::float32   ? mx::float32
         : dtype == Dtype::float16 ? mx::float16
                                   : mx::bfloat16;
}

// 16-bit rows go through float32 buffers, so many at a time.
constexpr int64_t kRowsAtOnce = 512;

void multiply_rows(const cpu::Matrix& m, cpu::Compute compute, Dtype dtype, const char* x,
                   int64_t rows, char* out) {
  const int64_t inputs = m.format.inputs, outputs = m.format.outputs;
  static thread_local std::vector<float> wide_x, wide_out;
  for (int64_t first = 0; first < rows; first += kRowsAtOnce) {
    const int64_t count = std::min(kRowsAtOnce, rows - first);
    const char* from = x + first * inputs * size_of(dtype);
    char* to = out + first * outputs * size_of(dtype);
    cpu::Product product;
    product.matrix = &m;
    product.out_stride = outputs;
    if (dtype == Dtype::float32) {
      product.out = reinterpret_cast<float*>(to);
      cpu::multiply(reinterpret_cast<const float*>(from), inputs, static_cast<int32_t>(count),
                    compute, &product, 1);
      continue;
    }
    const auto grow = [](std::vector<float>& v, int64_t size) {
      if (v.size() < static_cast<size_t>(size)) v.resize(static_cast<size_t>(size));
    };
    grow(wide_x, count * inputs);
    grow(wide_out, count * outputs);
    product.out = wide_out.data();
    const auto& row = cpu::row_kernels();
    row.to_float(from, dtype, 1, static_cast<int32_t>(count * inputs), wide_x.data());
    cpu::multiply(wide_x.data(), inputs, static_cast<int32_t>(count), compute, &product, 1);
    row.from_float(wide_out.data(), static_cast<int32_t>(count * outputs), dtype, to);
  }
}

class Linear : public CpuOperation {
 public:
  Linear(mx::Stream stream, MatrixRef matrix, cpu::Compute compute)
      : CpuOperation(stream), matrix_(std::move(matrix)), compute_(compute) {}

  const char* name() const override { return "PamxLinear"; }

 protected:
  void dispatch(mx::cpu::CommandEncoder& encoder, const std::vector<mx::array>& in,
                mx::array& out) override {
    encoder.dispatch([x = in[0].data<char>(), to = out.data<char>(),
                      rows = static_cast<int64_t>(in[0].size()) / matrix_->format.inputs,
                      dtype = cpu_dtype(in[0].dtype()), matrix = matrix_,
                      compute = compute_] { multiply_rows(*matrix, compute, dtype, x, rows, to); });
  }

 private:
  MatrixRef matrix_;
  cpu::Compute compute_;
};

// Ids of any integer type, where they lie.
struct Ids {
  const char* data;
  mx::Dtype dtype;

  // The rows of a matrix of `outputs` that ids [first, first + count) mean; -1: none.
  void rows(int64_t first, int64_t count, int32_t outputs, int32_t* to) const {
    mx::dispatch_int_types(dtype, "pamx", [&](auto tag) {
      using Id = MLX_GET_TYPE(tag);
      const auto* from = reinterpret_cast<const Id*>(data) + first;
      for (int64_t i = 0; i < count; ++i) to[i] = row(from[i], outputs);
    });
  }

 private:
  template <class Id>
  static int32_t row(Id id, int32_t outputs) {
    if (std::cmp_greater_equal(id, outputs)) return -1;
    if (std::cmp_greater_equal(id, 0)) return static_cast<int32_t>(id);
    return std::cmp_less(id, -int64_t{outputs}) ? -1 : static_cast<int32_t>(id) + outputs;
  }
};

void embed_rows(const cpu::Matrix& m, Dtype dtype, const Ids& ids, int64_t count, char* out) {
  const int64_t inputs = m.format.inputs;
  static thread_local std::vector<float> wide;
  static thread_local std::vector<int32_t> kept;
  for (int64_t first = 0; first < count; first += kRowsAtOnce) {
    const int64_t rows = std::min(kRowsAtOnce, count - first);
    char* to = out + first * inputs * size_of(dtype);
    auto* rows_out = reinterpret_cast<float*>(to);
    if (dtype != Dtype::float32) {
      wide.resize(static_cast<size_t>(rows * inputs));
      rows_out = wide.data();
    }
    kept.resize(static_cast<size_t>(rows));
    ids.rows(first, rows, m.format.outputs, kept.data());
    std::vector<int64_t> outside;
    for (int64_t i = 0; i < rows; ++i) {
      auto& id = kept[static_cast<size_t>(i)];
      if (id >= 0) continue;
      outside.push_back(i);
      id = 0;
    }
    cpu::embed(m, kept.data(), static_cast<int32_t>(rows), dtype, rows_out, inputs);
    for (const int64_t i : outside) std::fill_n(rows_out + i * inputs, inputs, std::nanf(""));
    if (dtype != Dtype::float32) {
      cpu::row_kernels().from_float(rows_out, static_cast<int32_t>(rows * inputs), dtype, to);
    }
  }
}

class Embedding : public CpuOperation {
 public:
  Embedding(mx::Stream stream, MatrixRef matrix)
      : CpuOperation(stream), matrix_(std::move(matrix)) {}

  const char* name() const override { return "PamxEmbedding"; }

 protected:
  void dispatch(mx::cpu::CommandEncoder& encoder, const std::vector<mx::array>& in,
                mx::array& out) override {
    encoder.dispatch([ids = Ids{in[0].data<char>(), in[0].dtype()},
                      count = static_cast<int64_t>(in[0].size()), to = out.data<char>(),
                      dtype = cpu_dtype(out.dtype()),
                      matrix = matrix_] { embed_rows(*matrix, dtype, ids, count, to); });
  }

 private:
  MatrixRef matrix_;
};

mx::array linear(MatrixRef matrix, int32_t compute, const mx::array& x) {
  require(compute == PAMX_FAST || compute == PAMX_EXACT,
          "compute is " + std::to_string(compute) + ", which is no pamx_compute");
  require(served_dtype(x.dtype()), [&] {
    return "x is " + dtype_string(x.dtype()) + "; float32, float16 and bfloat16 are served";
  });
  require(x.ndim() >= 1 && x.shape(-1) == matrix->format.inputs, [&] {
    return "x has shape " + shape_string(x.shape()) + "; the matrix has " +
           std::to_string(matrix->format.inputs) + " inputs";
  });
  const auto stream = cpu_stream();
  mx::Shape shape = x.shape();
  shape.back() = matrix->format.outputs;
  const mx::Dtype dtype = x.dtype();
  return mx::array(
      shape, dtype,
      std::make_shared<Linear>(stream, std::move(matrix), static_cast<cpu::Compute>(compute)),
      {mx::contiguous(x, false, stream)});
}

mx::array embedding(MatrixRef matrix, const mx::array& ids, Dtype dtype) {
  require(mx::issubdtype(ids.dtype(), mx::integer),
          [&] { return "ids are " + dtype_string(ids.dtype()) + " instead of integers"; });
  const auto stream = cpu_stream();
  mx::Shape shape = ids.shape();
  shape.push_back(matrix->format.inputs);
  return mx::array(shape, mlx_dtype(dtype), std::make_shared<Embedding>(stream, std::move(matrix)),
                   {mx::contiguous(ids, false, stream)});
}

}  // namespace

}  // namespace pamx

extern "C" int pamx_matrix_bytes(const pamx_matrix_format* format, int64_t* bytes) {
  return pamx::guarded([&] {
    pamx::require(bytes != nullptr, "the place for the number of bytes is null");
    *bytes = pamx::format_of(format).bytes();
  });
}

extern "C" int pamx_matrix_pack(const pamx_matrix_format* format, const void* weight,
                                const void* scales, const void* biases, int32_t source_type,
                                void* panels) {
  return pamx::guarded([&] {
    pamx::cpu::pack(pamx::format_of(format), weight, scales, biases,
                    pamx::dtype_of(source_type, "source_type"), static_cast<uint8_t*>(panels));
  });
}

extern "C" int pamx_matrix_unpack(const pamx_matrix_format* format, const void* panels,
                                  void* weight, void* scales, void* biases, int32_t target_type) {
  return pamx::guarded([&] {
    pamx::cpu::unpack(pamx::format_of(format), static_cast<const uint8_t*>(panels), weight, scales,
                      biases, pamx::dtype_of(target_type, "target_type"));
  });
}

extern "C" int pamx_matrix_create(const pamx_matrix_format* format, const pamx_memory* memory,
                                  int64_t offset, const float* bias, int32_t wide,
                                  pamx_matrix** out) {
  return pamx::guarded([&] {
    pamx::require(out != nullptr, "the place for the new matrix is null");
    *out = nullptr;
    *out = new pamx_matrix{pamx::create(format, memory, offset, bias, wide != 0)};
  });
}

extern "C" void pamx_matrix_free(pamx_matrix* matrix) { delete matrix; }

extern "C" int pamx_linear(const pamx_matrix* matrix, int32_t compute, pamx_object x,
                           pamx_object out) {
  return pamx::guarded([&] {
    pamx::require(matrix != nullptr, "the matrix is null");
    auto& out_array = pamx::array_of(out, "out");
    out_array = pamx::linear(matrix->matrix, compute, pamx::array_of(x, "x"));
  });
}

extern "C" int pamx_embedding(const pamx_matrix* matrix, pamx_object ids, int32_t dtype,
                              pamx_object out) {
  return pamx::guarded([&] {
    pamx::require(matrix != nullptr, "the matrix is null");
    auto& out_array = pamx::array_of(out, "out");
    out_array =
        pamx::embedding(matrix->matrix, pamx::array_of(ids, "ids"), pamx::dtype_of(dtype, "dtype"));
  });
}
