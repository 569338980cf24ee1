// Linear layers under the sanitizers: buffers of exactly the right size, and plain loops in double.

#include "cpu/linear/linear.hpp"

#include <cmath>
#include <cstdio>
#include <cstring>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "core/status.hpp"
#include "cpu/worker_pool.hpp"
#include "expect.hpp"

namespace {

using pamx::Dtype;
using pamx::cpu::Compute;
using pamx::cpu::Gate;
using pamx::cpu::Matrix;
using pamx::cpu::MatrixFormat;

struct Weights {
  Matrix matrix;
  std::vector<double> values;  // [outputs, inputs], what the matrix means
  std::vector<float> bias;
};

// Random integers, float32 scales; heap blocks without a byte to spare.
Weights make(int32_t outputs, int32_t inputs, int32_t bits, int32_t group_size, uint32_t seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  Weights w;
  MatrixFormat& f = w.matrix.format;
  f = {outputs, inputs, bits, group_size, Dtype::float32};
  const auto n = static_cast<size_t>(outputs), k = static_cast<size_t>(inputs);
  w.values.resize(n * k);
  auto memory = std::make_shared<std::vector<uint8_t>>(static_cast<size_t>(f.bytes()));
  if (bits == 0) {
    std::vector<float> elements(n * k);
    for (size_t i = 0; i < n * k; ++i) w.values[i] = double{elements[i] = normal(random)};
    pamx::cpu::pack(f, elements.data(), nullptr, nullptr, Dtype::float32, memory->data());
  } else {
    const size_t groups = k / static_cast<size_t>(group_size);
    std::vector<uint32_t> words(n * k * static_cast<size_t>(bits) / 32);
    for (auto& word : words) word = random();
    std::vector<float> scales(n * groups), biases(n * groups);
    for (auto& s : scales) s = normal(random) / 16;
    for (auto& b : biases) b = normal(random);
    pamx::cpu::pack(f, words.data(), scales.data(), biases.data(), Dtype::float32, memory->data());
    std::vector<uint32_t> words_again(words.size());
    std::vector<float> scales_again(scales.size()), biases_again(biases.size());
    pamx::cpu::unpack(f, memory->data(), words_again.data(), scales_again.data(),
                      biases_again.data(), Dtype::float32);
    expect(words == words_again && scales == scales_again && biases == biases_again,
           "unpacking " + std::to_string(bits) + " bits gives something else");
    const auto* bytes = reinterpret_cast<const uint8_t*>(words.data());
    for (size_t i = 0; i < n * k; ++i) {
      uint32_t q = 0;
      for (size_t bit = 0; bit < static_cast<size_t>(bits); ++bit) {
        const size_t at = i * static_cast<size_t>(bits) + bit;
        q |= static_cast<uint32_t>(bytes[at / 8] >> at % 8 & 1) << bit;
      }
      const size_t group = i / static_cast<size_t>(group_size);
      w.values[i] = double{scales[group]} * q + double{biases[group]};
    }
  }
  for (int32_t i = 0; i < outputs; ++i) w.bias.push_back(normal(random));
  w.matrix.panels = memory->data();
  w.matrix.memory = memory;
  return w;
}

std::vector<float> random_floats(size_t count, uint32_t seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  std::vector<float> values(count);
  for (auto& v : values) v = normal(random);
  return values;
}

double product(const Weights& w, const float* x, int32_t output) {
  const auto inputs = static_cast<size_t>(w.matrix.format.inputs);
  double sum = 0;
  for (size_t k = 0; k < inputs; ++k) {
    sum += w.values[static_cast<size_t>(output) * inputs + k] * double{x[k]};
  }
  return sum;
}

double tolerance(const Weights& w, Compute compute) {
  const double inputs = w.matrix.format.inputs;
  if (compute == Compute::exact || w.matrix.format.bits == 0) return 2e-4 * std::sqrt(inputs);
  const double largest = (1 << w.matrix.format.bits) / 8.0 + 3;
  return largest * std::sqrt(inputs) * (w.matrix.wide ? 0.001 : 0.06);
}

// Three matrices over one input, with bias, scale and residual; the last one adds in place.
void check_products(int32_t rows, int32_t inputs, int32_t bits, int32_t group_size,
                    Compute compute) {
  const std::string name = std::to_string(bits) + " bits, " + std::to_string(rows) + " rows";
  Weights weights[] = {make(37, inputs, bits, group_size, 1), make(16, inputs, bits, group_size, 2),
                       make(100, inputs, bits, group_size, 3)};
  weights[0].matrix.bias = weights[0].bias.data();
  weights[1].matrix.wide = true;
  const auto n = static_cast<size_t>(rows);
  const int64_t stride = inputs + 3;
  const auto x =
      random_floats((n - 1) * static_cast<size_t>(stride) + static_cast<size_t>(inputs), 4);
  const auto residual = random_floats(n * 16, 5);
  auto in_place = random_floats(n * 100, 6);
  const auto before = in_place;
  std::vector<float> first(n * 37), second(n * 16);
  const pamx::cpu::Product products[] = {
      {&weights[0].matrix, first.data(), 37, nullptr, 0, 1.0f},
      {&weights[1].matrix, second.data(), 16, residual.data(), 16, 0.5f},
      {&weights[2].matrix, in_place.data(), 100, in_place.data(), 100, 1.0f}};
  pamx::cpu::multiply(x.data(), stride, rows, compute, products, 3);
  bool right = true;
  for (size_t r = 0; r < n; ++r) {
    const float* row = x.data() + r * static_cast<size_t>(stride);
    const auto near = [&](const Weights& w, double expected, float found) {
      right &= std::abs(expected - double{found}) <= tolerance(w, compute);
    };
    for (size_t i = 0; i < 37; ++i) {
      near(weights[0],
           product(weights[0], row, static_cast<int32_t>(i)) + double{weights[0].bias[i]},
           first[r * 37 + i]);
    }
    for (size_t i = 0; i < 16; ++i) {
      near(weights[1],
           product(weights[1], row, static_cast<int32_t>(i)) * 0.5 + double{residual[r * 16 + i]},
           second[r * 16 + i]);
    }
    for (size_t i = 0; i < 100; ++i) {
      near(weights[2],
           product(weights[2], row, static_cast<int32_t>(i)) + double{before[r * 100 + i]},
           in_place[r * 100 + i]);
    }
  }
  expect(right, name + ": products differ from the plain loop");

  // A row alone, on one thread, has the same bits.
  for (const int32_t r : {0, rows / 2, rows - 1}) {
    std::vector<float> alone(37);
    const pamx::cpu::Product one{&weights[0].matrix, alone.data(), 37, nullptr, 0, 1.0f};
    pamx::cpu::set_num_threads(1);
    pamx::cpu::multiply(x.data() + r * stride, stride, 1, compute, &one, 1);
    pamx::cpu::set_num_threads(2);
    expect(std::memcmp(alone.data(), first.data() + r * 37, 37 * sizeof(float)) == 0,
           name + ": a row alone differs");
  }
}

void check_not_finite() {
  Weights w = make(20, 64, 4, 32, 7);
  auto x = random_floats(9 * 64, 8);
  x[3 * 64 + 5] = std::numeric_limits<float>::quiet_NaN();
  x[4 * 64 + 6] = std::numeric_limits<float>::infinity();
  x[8 * 64 + 63] = std::numeric_limits<float>::max();
  std::vector<float> out(9 * 20, 1.0f);
  const pamx::cpu::Product in_place{&w.matrix, out.data(), 20, out.data(), 20, 1.0f};
  pamx::cpu::multiply(x.data(), 64, 9, Compute::fast, &in_place, 1);
  for (size_t r = 0; r < 9; ++r) {
    for (size_t i = 0; i < 20; ++i) {
      const float y = out[r * 20 + i];
      if (r == 3) {
        expect(std::isnan(y), "NaN was lost");
      } else if (r == 4) {
        expect(!std::isfinite(y), "infinity was lost");
      } else if (r != 8) {
        const double expected = product(w, x.data() + r * 64, static_cast<int32_t>(i)) + 1;
        expect(std::abs(double{y} - expected) < tolerance(w, Compute::fast),
               "a row beside one that is not finite is wrong");
      }
    }
  }
}

double activation(Gate gate, double x) {
  switch (gate) {
    case Gate::silu:
      return x / (1 + std::exp(-x));
    case Gate::gelu:
      return x * (1 + std::erf(x / std::sqrt(2.0))) / 2;
    case Gate::gelu_tanh:
      return x * (1 + std::tanh(std::sqrt(2 / std::acos(-1.0)) * (x + 0.044715 * x * x * x))) / 2;
    default:
      return x > 0 ? x : 0;
  }
}

void check_gates() {
  // Gate and up may be packed differently; one of them is a slice.
  const Weights gate = make(41, 64, 0, 0, 9);
  Weights both = make(80 + 41, 64, 0, 0, 10);
  both.matrix.bias = both.bias.data();
  const Matrix up = pamx::cpu::slice(both.matrix, 80, 41);
  for (const Gate kind : {Gate::silu, Gate::gelu, Gate::gelu_tanh, Gate::relu}) {
    for (const int32_t rows : {1, 13}) {
      const auto n = static_cast<size_t>(rows);
      const auto x = random_floats(n * 64, 11);
      std::vector<float> out(n * 41);
      pamx::cpu::multiply_gated(x.data(), 64, rows, Compute::fast, gate.matrix, up, kind,
                                out.data(), 41);
      double worst = 0;
      for (size_t r = 0; r < n; ++r) {
        for (int32_t i = 0; i < 41; ++i) {
          const double g = product(gate, x.data() + r * 64, i);
          const double u = product(both, x.data() + r * 64, 80 + i) +
                           double{both.bias[static_cast<size_t>(80 + i)]};
          const double expected = activation(kind, g) * u;
          const double found = double{out[r * 41 + static_cast<size_t>(i)]};
          worst = std::max(worst, std::abs(found - expected) / (1 + std::abs(g * u)));
        }
      }
      expect(worst < 1e-5, "gate " + std::to_string(static_cast<int32_t>(kind)) + " is off by " +
                               std::to_string(worst));
    }
  }
}

void check_embedding_and_16_bits() {
  for (const int32_t bits : {0, 2, 3, 4, 6, 8}) {
    const Weights w = make(35, 64, bits, bits ? 32 : 0, 12);
    const int32_t ids[] = {0, 34, 17, 34, 3};
    std::vector<float> out(5 * 64);
    pamx::cpu::embed(w.matrix, ids, 5, Dtype::float32, out.data(), 64);
    for (size_t i = 0; i < 5 * 64; ++i) {
      const double expected = w.values[static_cast<size_t>(ids[i / 64]) * 64 + i % 64];
      expect(std::abs(expected - double{out[i]}) < 1e-4, "an embedded row is wrong");
    }
  }
}

void check_refusals() {
  const auto refused = [](MatrixFormat f) {
    try {
      pamx::cpu::check(f);
    } catch (const pamx::Error&) {
      return true;
    }
    return false;
  };
  expect(refused({16, 64, 5, 32, Dtype::float32}), "5 bits");
  expect(refused({16, 65, 4, 32, Dtype::float32}), "inputs that are no groups");
  expect(refused({0, 64, 4, 32, Dtype::float32}), "no outputs");
  expect(refused({16, 64, 0, 32, Dtype::float32}), "dense groups");
  pamx_memory* memory = nullptr;
  expect(pamx_memory_allocate(-1, &memory) == PAMX_INVALID_ARGUMENT, "negative memory");
  expect(pamx_memory_map("/nonexistent", 64, &memory) == PAMX_FAILED, "a file that is not there");
  expect(memory == nullptr, "refused memory left a handle");
  expect(pamx_memory_allocate(3 << 20, &memory) == PAMX_OK, "memory");
  auto* data = static_cast<uint8_t*>(pamx_memory_data(memory));
  expect(data[0] == 0 && data[(3 << 20) - 1] == 0, "new memory is not zero");
  pamx_memory_free(memory);
}

}  // namespace

int check_linear() {
  pamx::cpu::set_num_threads(2);
  for (const Compute compute : {Compute::fast, Compute::exact}) {
    for (const int32_t bits : {2, 3, 4, 6, 8}) {
      check_products(1, 64, bits, 32, compute);
      check_products(15, 128, bits, 64, compute);
      check_products(70, 128, bits, 128, compute);
    }
    for (const int32_t rows : {1, 2, 3, 19, 66}) check_products(rows, 35, 0, 0, compute);
  }
  check_products(5, 1184, 4, 32, Compute::exact);  // deeper than one pass of scratch
  check_not_finite();
  check_gates();
  check_embedding_and_16_bits();
  check_refusals();
  return failures;
}
