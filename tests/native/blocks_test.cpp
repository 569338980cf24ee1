// Fused blocks under the sanitizers: inputs and pools of the exact size, against plain loops.

#include <cmath>
#include <cstdio>
#include <random>
#include <vector>

#include "core/batch.hpp"
#include "cpu/block/attention_block.hpp"
#include "cpu/block/mlp_block.hpp"
#include "expect.hpp"

namespace {

using namespace pamx::cpu;
using pamx::Dtype;
using Vector = std::vector<float>;

std::mt19937 generator(11);

Vector normal(int64_t n, float scale = 1.0f) {
  std::normal_distribution<float> distribution;
  Vector v(static_cast<size_t>(n));
  for (auto& x : v) x = scale * distribution(generator);
  return v;
}

// A dense matrix with a bias, as the library holds it and as it was.
struct Layer {
  int32_t outputs, inputs;
  Vector weight, bias;
  std::vector<uint8_t> panels;
  pamx_matrix handle;

  Layer(int32_t out, int32_t in)
      : outputs(out),
        inputs(in),
        weight(normal(int64_t{out} * in, 1.0f / std::sqrt(static_cast<float>(in)))),
        bias(normal(out)) {
    Matrix matrix;
    matrix.format = {out, in, 0, 0, Dtype::float32};
    panels.resize(static_cast<size_t>(matrix.format.bytes()));
    pack(matrix.format, weight.data(), nullptr, nullptr, Dtype::float32, panels.data());
    matrix.panels = panels.data();
    matrix.bias = bias.data();
    handle.matrix = std::make_shared<const Matrix>(matrix);
  }

  Vector operator()(const float* x) const {
    Vector y = bias;
    for (size_t o = 0; o < y.size(); ++o) {
      double total = y[o];
      for (size_t i = 0; i < static_cast<size_t>(inputs); ++i) {
        total += double{weight[o * static_cast<size_t>(inputs) + i]} * double{x[i]};
      }
      y[o] = static_cast<float>(total);
    }
    return y;
  }
};

void normalise(float* x, int64_t n) {
  double squares = 0;
  for (int64_t i = 0; i < n; ++i) squares += double{x[i]} * double{x[i]} / static_cast<double>(n);
  for (int64_t i = 0; i < n; ++i) x[i] = static_cast<float>(x[i] / std::sqrt(squares + 1e-3));
}

RowView rows_of(const Vector& data, int32_t width) {
  RowView view;
  view.data = data.data();
  view.width = width;
  view.axes = 1;
  view.lengths[0] = static_cast<int64_t>(data.size()) / width;
  view.strides[0] = width;
  return view;
}

void check_attention_block() {
  const int32_t width = 24, heads = 4, kv_heads = 2, dim = 16, pairs = 4;
  const Layer q(heads * dim, width), k(kv_heads * dim, width), v(kv_heads * dim, width),
      o(width, heads * dim);
  const Vector inverse{1.0f, 0.3f, 0.1f, 0.03f};
  pamx_rope* rope = nullptr;
  expect(pamx_rope_create(inverse.data(), pairs, 1.0f, 1.0f, 1, &rope) == PAMX_OK,
         pamx_last_error());
  pamx_attention_block_desc desc{};
  desc.compute = PAMX_FAST;
  desc.heads = heads;
  desc.kv_heads = kv_heads;
  desc.head_dim = desc.v_dim = dim;
  desc.residual_scale = 0.5f;
  desc.input_norm = {PAMX_NORM_RMS, width, 1e-3f, nullptr, nullptr};
  desc.query_norm = desc.key_norm = {PAMX_NORM_RMS, dim, 1e-3f, nullptr, nullptr};
  desc.output_norm = {PAMX_NORM_RMS, width, 1e-3f, nullptr, nullptr};
  desc.query = &q.handle;
  desc.key = &k.handle;
  desc.value = &v.handle;
  desc.output = &o.handle;
  desc.rope = rope;
  desc.attention.scale = 0.25f;
  pamx_attention_block* block = nullptr;
  expect(pamx_attention_block_create(&desc, &block) == PAMX_OK, pamx_last_error());
  pamx_rope_free(rope);
  if (!block) return;

  // Two sequences that begin here: one longer than a slab, and one of a few tokens.
  const int32_t starts[] = {0, 600, 605}, lens[] = {600, 5};
  const int32_t blocks = 38, tokens = starts[2];
  std::vector<int32_t> tables(2 * blocks, -1);
  for (int32_t i = 0; i < blocks; ++i) tables[static_cast<size_t>(i)] = blocks - i;
  tables[static_cast<size_t>(blocks)] = 0;
  const pamx_batch_desc batch_desc{2, blocks + 1, 16, blocks, starts, lens, tables.data()};
  pamx_batch* batch = nullptr;
  expect(pamx_batch_create(&batch_desc, &batch) == PAMX_OK, pamx_last_error());
  if (!batch) return;
  const auto pool_size = static_cast<size_t>((blocks + 1) * 16 * kv_heads * dim);
  std::vector<uint16_t> key_pool(pool_size), value_pool(pool_size);
  const Vector x = normal(int64_t{tokens} * width);
  Vector out(x.size());
  AttentionBlockCall call;
  call.block = block->block.get();
  call.batch = batch->batch.get();
  call.window = 50;
  call.x = rows_of(x, width);
  call.out = out.data();
  call.pool_dtype = Dtype::bfloat16;
  call.key_pool = key_pool.data();
  call.value_pool = value_pool.data();
  run(call);

  // The same with plain loops, the keys and values rounded as the pools round them.
  std::vector<Vector> queries, keys, values;
  for (int32_t t = 0; t < tokens; ++t) {
    Vector n(x.begin() + t * width, x.begin() + (t + 1) * width);
    normalise(n.data(), width);
    queries.push_back(q(n.data()));
    keys.push_back(k(n.data()));
    values.push_back(v(n.data()));
    const int32_t position = t < 600 ? t : t - 600;
    for (Vector* rows : {&queries.back(), &keys.back()}) {
      for (size_t h = 0; h < rows->size(); h += dim) {
        float* head = rows->data() + h;
        normalise(head, dim);
        for (int32_t i = 0; i < pairs; ++i) {
          const double angle = static_cast<float>(position) * inverse[static_cast<size_t>(i)];
          const double a = head[2 * i], b = head[2 * i + 1];
          head[2 * i] = static_cast<float>(a * std::cos(angle) - b * std::sin(angle));
          head[2 * i + 1] = static_cast<float>(a * std::sin(angle) + b * std::cos(angle));
        }
      }
    }
    for (Vector* rows : {&keys.back(), &values.back()}) {
      std::vector<uint16_t> narrow(rows->size());
      row_kernels().from_float(rows->data(), static_cast<int32_t>(rows->size()), Dtype::bfloat16,
                               narrow.data());
      row_kernels().to_float(narrow.data(), Dtype::bfloat16, 1, static_cast<int32_t>(rows->size()),
                             rows->data());
    }
  }
  double worst = 0;
  for (int32_t t = 0; t < tokens; ++t) {
    const int32_t begin = t < 600 ? 0 : 600;
    const int32_t first = std::max(begin, t - 49);
    Vector attended(static_cast<size_t>(heads * dim));
    for (int32_t h = 0; h < heads; ++h) {
      const int32_t at = h / 2 * dim;
      double total = 0;
      std::vector<double> sums(dim);
      for (int32_t p = first; p <= t; ++p) {
        double score = 0;
        const auto row = static_cast<size_t>(p);
        for (int32_t d = 0; d < dim; ++d) {
          score += double{queries[static_cast<size_t>(t)][static_cast<size_t>(h * dim + d)]} *
                   double{keys[row][static_cast<size_t>(at + d)]};
        }
        const double weight = std::exp(0.25 * score);
        total += weight;
        for (int32_t d = 0; d < dim; ++d) {
          sums[static_cast<size_t>(d)] += weight * double{values[row][static_cast<size_t>(at + d)]};
        }
      }
      for (int32_t d = 0; d < dim; ++d) {
        attended[static_cast<size_t>(h * dim + d)] =
            static_cast<float>(sums[static_cast<size_t>(d)] / total);
      }
    }
    Vector y = o(attended.data());
    normalise(y.data(), width);
    for (int32_t i = 0; i < width; ++i) {
      const auto j = static_cast<size_t>(t * width + i);
      worst = std::max(worst, std::abs(x[j] + 0.5 * y[static_cast<size_t>(i)] - double{out[j]}));
    }
  }
  // A key that lies between two bfloat16 numbers may be rounded either way.
  expect(worst < 5e-3, "an attention block differs from the plain loops");
  pamx_batch_free(batch);
  pamx_attention_block_free(block);
}

void check_mlp_block(bool residual) {
  const int32_t width = 40, hidden = 56, tokens = 70;
  const Layer gate(hidden, width), up(hidden, width), down(width, hidden);
  pamx_mlp_block_desc desc{};
  desc.compute = PAMX_EXACT;
  desc.gate_kind = PAMX_GATE_SILU;
  desc.residual = residual;
  desc.residual_scale = 0.5f;
  if (residual) desc.input_norm = {PAMX_NORM_RMS, width, 1e-3f, nullptr, nullptr};
  desc.gate = &gate.handle;
  desc.up = &up.handle;
  desc.down = &down.handle;
  pamx_mlp_block* block = nullptr;
  expect(pamx_mlp_block_create(&desc, &block) == PAMX_OK, pamx_last_error());
  if (!block) return;
  const Vector x = normal(int64_t{tokens} * width);
  Vector out(x.size());
  MlpBlockCall call;
  call.block = block->block.get();
  call.x = rows_of(x, width);
  call.out = out.data();
  run(call);
  double worst = 0;
  for (int32_t t = 0; t < tokens; ++t) {
    Vector n(x.begin() + t * width, x.begin() + (t + 1) * width);
    if (residual) normalise(n.data(), width);
    Vector middle = gate(n.data());
    const Vector other = up(n.data());
    for (size_t i = 0; i < middle.size(); ++i) {
      middle[i] = middle[i] / (1.0f + std::exp(-middle[i])) * other[i];
    }
    const Vector y = down(middle.data());
    for (size_t i = 0; i < y.size(); ++i) {
      const auto j = static_cast<size_t>(t * width) + i;
      worst = std::max(worst, std::abs((residual ? x[j] : 0.0) + 0.5 * y[i] - double{out[j]}));
    }
  }
  expect(worst < 1e-4, "an MLP block differs from the plain loops");
  desc.down = &gate.handle;
  pamx_mlp_block* refused = nullptr;
  expect(pamx_mlp_block_create(&desc, &refused) == PAMX_INVALID_ARGUMENT && !refused,
         "matrices that do not fit were taken");
  pamx_mlp_block_free(block);
}

}  // namespace

// The number of failures.
int check_fused_blocks() {
  check_attention_block();
  check_mlp_block(true);
  check_mlp_block(false);
  return failures;
}
