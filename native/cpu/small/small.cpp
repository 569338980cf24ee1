// Choosing the row kernels for this processor, and running them over a tensor's rows.
#include "cpu/small/small.hpp"

#include <vector>

#include "cpu/isa/isa.hpp"

namespace pamx::cpu {

const RowKernels& row_kernels() {
  switch (isa()) {
#if defined(__x86_64__)
    case Isa::avx512:
      return avx512::row_kernels;
    case Isa::avx2:
      return avx2::row_kernels;
#elif defined(__aarch64__)
    case Isa::neon:
      return neon::row_kernels;
#endif
    default:
      return portable::row_kernels;
  }
}

int64_t RowView::rows() const {
  int64_t count = 1;
  for (int32_t i = 0; i < axes; ++i) count *= lengths[i];
  return count;
}

const void* RowView::row(int64_t index) const {
  int64_t offset = 0;
  for (int32_t i = axes - 1; i > 0; --i) {
    offset += index % lengths[i] * strides[i];
    index /= lengths[i];
  }
  if (axes > 0) offset += index * strides[0];
  return static_cast<const char*>(data) + offset * size_of(dtype);
}

const float* float_row(const RowView& view, int64_t index, float* buffer) {
  const void* row = view.row(index);
  if (view.dtype == Dtype::float32 && view.stride == 1) return static_cast<const float*>(row);
  row_kernels().to_float(row, view.dtype, view.stride, view.width, buffer);
  return buffer;
}

namespace {

// Buffers of this thread, kept for the next call; each use of a slot ends before the next begins.
enum Slot { kInput, kSecond, kOutput, kWeight, kBias, kSlots };

float* buffer(Slot slot, int32_t floats) {
  static thread_local std::vector<float> buffers[kSlots];
  auto& b = buffers[slot];
  if (b.size() < static_cast<size_t>(floats)) b.resize(static_cast<size_t>(floats));
  return b.data();
}

const float* optional_row(const RowView& view, Slot slot) {
  return view.data ? float_row(view, 0, buffer(slot, view.width)) : nullptr;
}

// Hands `write` the place where a row's float32 results go, then rounds them if need be.
template <class Write>
void write_row(void* out, Dtype dtype, int64_t index, int32_t width, const Write& write) {
  void* row = static_cast<char*>(out) + index * width * size_of(dtype);
  if (dtype == Dtype::float32) return write(static_cast<float*>(row));
  float* wide = buffer(kOutput, width);
  write(wide);
  row_kernels().from_float(wide, width, dtype, row);
}

}  // namespace

void run(const NormCall& call) {
  const RowKernels& k = row_kernels();
  const int32_t n = call.x.width;
  const float* weight = optional_row(call.weight, kWeight);
  const float* bias = optional_row(call.bias, kBias);
  for_rows(call.x.rows(), n, [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) {
      const float* x = float_row(call.x, r, buffer(kInput, n));
      write_row(call.out, call.out_dtype, r, n, [&](float* out) {
        if (call.kind == NormKind::rms) {
          k.rms_norm(x, weight, call.eps, n, out);
        } else {
          k.layer_norm(x, weight, bias, call.eps, n, out);
        }
      });
    }
  });
}

void run(const GateCall& call) {
  const RowKernels& k = row_kernels();
  const int32_t n = call.gate.width;
  for_rows(call.gate.rows(), n, [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) {
      const float* gate = float_row(call.gate, r, buffer(kInput, n));
      const float* up = call.up.data ? float_row(call.up, r, buffer(kSecond, n)) : nullptr;
      write_row(call.out, call.out_dtype, r, n,
                [&](float* out) { k.gate(call.kind, gate, up, n, out); });
    }
  });
}

void run(const RopeCall& call) {
  const RowKernels& k = row_kernels();
  const int32_t n = call.x.width, pairs = call.rope->pairs();
  const int64_t rows = call.x.rows(), rows_of_one = rows / call.batch;
  // One offset for all: one row of the table for each t; else one for each (b, t).
  const bool shared = !call.offsets || call.offsets_stride == 0;
  std::vector<int32_t> positions;
  for (int32_t b = 0; b < (shared ? 1 : call.batch); ++b) {
    const int32_t offset = call.offsets ? call.offsets[b * call.offsets_stride] : call.offset;
    for (int32_t t = 0; t < call.length; ++t) {
      // Wraps instead of overflowing: the caller's positions are nonsense then, not undefined.
      positions.push_back(
          static_cast<int32_t>(static_cast<uint32_t>(offset) + static_cast<uint32_t>(t)));
    }
  }
  const auto table = call.rope->table(positions.data(), static_cast<int64_t>(positions.size()));
  for_rows(rows, n, [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) {
      const int64_t t = r % call.length + (shared ? 0 : r / rows_of_one * call.length);
      const float* angles = table->rows.data() + t * 2 * pairs;
      write_row(call.out, call.x.dtype, r, n, [&](float* out) {
        k.to_float(call.x.row(r), call.x.dtype, call.x.stride, n, out);
        k.rotate(out, angles, angles + pairs, pairs, call.rope->traditional());
      });
    }
  });
}

}  // namespace pamx::cpu
