// Small operations under the sanitizers: buffers of the exact size, against plain loops.

#include "cpu/small/small.hpp"

#include <cmath>
#include <cstdio>
#include <random>
#include <vector>

#include "expect.hpp"

namespace {

using namespace pamx::cpu;
using pamx::Dtype;

std::vector<float> normal(size_t n, uint32_t seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> distribution;
  std::vector<float> v(n);
  for (auto& x : v) x = distribution(random);
  return v;
}

// `rows` rows of `width` elements that lie `stride` apart, one row after the other.
RowView view_of(std::vector<float>& data, int32_t width, int64_t stride, int64_t rows) {
  RowView view;
  view.data = data.data();
  view.width = width;
  view.stride = stride;
  view.axes = 1;
  view.lengths[0] = rows;
  view.strides[0] = (width - 1) * stride + 1;
  return view;
}

void check_norms(int32_t width, int64_t stride, int64_t rows) {
  const size_t n = static_cast<size_t>(width), count = n * static_cast<size_t>(rows);
  auto x = normal(static_cast<size_t>(((width - 1) * stride + 1) * rows), 1);
  auto weight = normal(n, 2), bias = normal(n, 3);
  std::vector<float> out(count);
  for (const NormKind kind : {NormKind::rms, NormKind::layer}) {
    NormCall call;
    call.kind = kind;
    call.eps = 1e-3f;
    call.x = view_of(x, width, stride, rows);
    call.weight = view_of(weight, width, 1, 1);
    if (kind == NormKind::layer) call.bias = view_of(bias, width, 1, 1);
    call.out = out.data();
    run(call);
    double worst = 0;
    for (int64_t r = 0; r < rows; ++r) {
      const float* row = static_cast<const float*>(call.x.row(r));
      double mean = 0, squares = 0;
      for (int32_t i = 0; i < width; ++i) mean += double{row[i * stride]} / width;
      if (kind == NormKind::rms) mean = 0;
      for (int32_t i = 0; i < width; ++i) squares += std::pow(row[i * stride] - mean, 2) / width;
      for (int32_t i = 0; i < width; ++i) {
        const auto j = static_cast<size_t>(i);
        const double expected = (row[i * stride] - mean) / std::sqrt(squares + 1e-3) * weight[j] +
                                (kind == NormKind::layer ? double{bias[j]} : 0.0);
        const double found = out[static_cast<size_t>(r) * n + j];
        worst = std::max(worst, std::abs(found - expected) / (1 + std::abs(expected)));
      }
    }
    expect(worst < 1e-5, "a norm differs from the plain loop");
  }
}

void check_rope(int32_t width, int32_t pairs, bool traditional) {
  const int32_t batch = 3, heads = 2, length = 5;
  std::vector<float> inverse;
  for (int32_t i = 0; i < pairs; ++i) {
    inverse.push_back(static_cast<float>(std::pow(100.0, -double(i) / pairs)));
  }
  const auto rope = Rope::create(inverse, 0.5f, 1.25f, traditional);
  expect(rope == Rope::create(inverse, 0.5f, 1.25f, traditional), "equal ropes are not shared");
  auto x = normal(static_cast<size_t>(batch * heads * length * width), 4);
  std::vector<float> out(x.size());
  const int32_t offsets[] = {7, 1000, 0};
  RopeCall call;
  call.rope = rope.get();
  call.x = view_of(x, width, 1, batch * heads * length);
  call.batch = batch;
  call.length = length;
  call.offsets = offsets;
  call.offsets_stride = 1;
  call.out = out.data();
  run(call);
  double worst = 0;
  for (int32_t r = 0; r < batch * heads * length; ++r) {
    const int32_t position = offsets[r / (heads * length)] + r % length;
    const float* in = x.data() + r * width;
    const float* found = out.data() + r * width;
    for (int32_t i = 0; i < pairs; ++i) {
      const int32_t a = traditional ? 2 * i : i, b = traditional ? 2 * i + 1 : i + pairs;
      const double angle = static_cast<float>(position) * 0.5f * inverse[static_cast<size_t>(i)];
      const double c = 1.25 * std::cos(angle), s = 1.25 * std::sin(angle);
      worst = std::max(worst, std::abs(found[a] - (in[a] * c - in[b] * s)));
      worst = std::max(worst, std::abs(found[b] - (in[a] * s + in[b] * c)));
    }
    for (int32_t i = 2 * pairs; i < width; ++i) {
      expect(found[i] == in[i], "rope changed an element that it does not rotate");
    }
  }
  expect(worst < 2e-6, "rope differs from the plain loop");
}

void check_gates(int32_t width) {
  auto gate = normal(static_cast<size_t>(width), 5), up = normal(static_cast<size_t>(width), 6);
  std::vector<float> out(gate.size());
  for (const Gate kind : {Gate::silu, Gate::gelu, Gate::gelu_tanh, Gate::relu}) {
    GateCall call;
    call.kind = kind;
    call.gate = view_of(gate, width, 1, 1);
    call.up = view_of(up, width, 1, 1);
    call.out = out.data();
    run(call);
    for (size_t i = 0; i < gate.size(); ++i) {
      const double x = gate[i];
      const double act = kind == Gate::silu   ? x / (1 + std::exp(-x))
                         : kind == Gate::gelu ? x * 0.5 * std::erfc(-x / std::sqrt(2.0))
                         : kind == Gate::relu
                             ? std::max(x, 0.0)
                             : 0.5 * x * (1 + std::tanh(0.7978845608 * (x + 0.044715 * x * x * x)));
      expect(std::abs(act * double{up[i]} - double{out[i]}) < 1e-5, "a gate differs");
    }
  }
}

void check_formats() {
  const RowKernels& k = row_kernels();
  for (const Dtype dtype : {Dtype::float16, Dtype::bfloat16}) {
    for (const int64_t stride : {1, 3}) {
      const int32_t n = 65536;
      std::vector<uint16_t> in(static_cast<size_t>((n - 1) * stride + 1)), out(65536);
      for (int32_t i = 0; i < n; ++i)
        in[static_cast<size_t>(i * stride)] = static_cast<uint16_t>(i);
      std::vector<float> wide(65536);
      k.to_float(in.data(), dtype, stride, n, wide.data());
      k.from_float(wide.data(), n, dtype, out.data());
      for (size_t i = 0; i < out.size(); ++i) {
        expect(std::isnan(wide[i]) || out[i] == i, "a 16-bit value changed on its way");
      }
    }
  }
}

}  // namespace

// The number of failures.
int check_small_operations() {
  for (const int32_t width : {1, 5, 16, 100, 576}) {
    check_norms(width, 1, 3);
    check_norms(width, 2, 70);
    check_gates(width);
  }
  for (const bool traditional : {false, true}) {
    check_rope(64, 32, traditional);
    check_rope(11, 3, traditional);
  }
  check_formats();
  return failures;
}
