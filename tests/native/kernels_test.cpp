// The kernels, the worker pool and the batch checks under the sanitizers, without MLX or Python.
//
// Correctness against an oracle is tested from Python; here each call is also checked against a
// plain double-precision loop, so that a sanitizer build that computes nonsense does not pass.

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <random>
#include <thread>
#include <utility>
#include <vector>

#include "core/batch.hpp"
#include "cpu/attention/attention.hpp"
#include "cpu/isa/isa.hpp"
#include "cpu/worker_pool.hpp"
#include "expect.hpp"

// Other files' checks; each returns how many failed.
int check_fused_blocks();
int check_boundary();
int check_linear();
int check_small_operations();
int check_under_noise();

namespace {

struct Geometry {
  int32_t heads, kv_heads, k_dim, v_dim, block_size, window;
  std::vector<int32_t> query_lens, context_lens;
};

// Every buffer has exactly the size that it must have: one element too far is a report.
void check_attention(const Geometry& g, uint32_t seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  const auto fill = [&](size_t n) {
    std::vector<float> v(n);
    for (auto& x : v) x = normal(random);
    return v;
  };
  const auto sequences = g.query_lens.size();
  std::vector<int32_t> starts{0};
  int32_t num_blocks = 0, max_blocks = 0;
  for (size_t s = 0; s < sequences; ++s) {
    starts.push_back(starts.back() + g.query_lens[s]);
    const int32_t blocks = (g.context_lens[s] + g.block_size - 1) / g.block_size;
    num_blocks += blocks;
    max_blocks = std::max(max_blocks, blocks);
  }
  std::vector<int32_t> tables(sequences * static_cast<size_t>(max_blocks), -1);
  int32_t next = num_blocks;  // handed out backwards
  for (size_t s = 0; s < sequences; ++s) {
    for (int32_t i = 0; i * g.block_size < g.context_lens[s]; ++i) {
      tables[s * static_cast<size_t>(max_blocks) + static_cast<size_t>(i)] = --next;
    }
  }
  const auto tokens = static_cast<size_t>(starts.back());
  const auto slots = static_cast<size_t>(num_blocks * g.block_size);
  const auto heads = static_cast<size_t>(g.heads), kv = static_cast<size_t>(g.kv_heads);
  const auto kd = static_cast<size_t>(g.k_dim), vd = static_cast<size_t>(g.v_dim);
  auto q = fill(tokens * heads * kd), k = fill(tokens * kv * kd), v = fill(tokens * kv * vd);
  auto key_pool = fill(slots * kv * kd), value_pool = fill(slots * kv * vd);
  std::vector<float> out(tokens * heads * vd);

  pamx_batch_desc desc{
      static_cast<int32_t>(sequences), num_blocks,   g.block_size, max_blocks, starts.data(),
      g.context_lens.data(),           tables.data()};
  pamx_batch* handle = nullptr;
  expect(pamx_batch_create(&desc, &handle) == PAMX_OK, pamx_last_error());
  if (!handle) return;

  pamx::cpu::PagedAttention call;
  call.heads = g.heads;
  call.kv_heads = g.kv_heads;
  call.k_dim = g.k_dim;
  call.v_dim = g.v_dim;
  call.scale = 1.0f / std::sqrt(static_cast<float>(g.k_dim));
  call.window = g.window;
  const auto rows = [](std::vector<float>& data, size_t h, size_t d) {
    return pamx::cpu::Rows{data.data(), static_cast<int64_t>(h * d), static_cast<int64_t>(d), 1};
  };
  call.queries = rows(q, heads, kd);
  call.keys = rows(k, kv, kd);
  call.values = rows(v, kv, vd);
  call.out = rows(out, heads, vd);
  call.key_pool = key_pool.data();
  call.value_pool = value_pool.data();
  const auto& batch = *handle->batch;
  call.num_sequences = batch.num_sequences();
  call.block_size = batch.block_size;
  call.max_blocks = batch.max_blocks;
  call.query_starts = batch.query_starts.data();
  call.context_lens = batch.context_lens.data();
  call.block_tables = batch.block_tables.data();
  pamx::cpu::run(call);

  double worst = 0;
  for (size_t s = 0; s < sequences; ++s) {
    const auto row_of = [&](int32_t position) {
      const int32_t block = tables[s * static_cast<size_t>(max_blocks) +
                                   static_cast<size_t>(position / g.block_size)];
      return static_cast<size_t>(block * g.block_size + position % g.block_size) * kv;
    };
    for (int32_t i = 0; i < g.query_lens[s]; ++i) {
      const int32_t position = g.context_lens[s] - g.query_lens[s] + i;
      const auto token = static_cast<size_t>(starts[s] + i);
      for (size_t h = 0; h < heads; ++h) {
        const size_t kv_head = h / (heads / kv);
        std::vector<double> sum(vd);
        double total = 0;
        const int32_t first = g.window > 0 ? std::max(0, position - g.window + 1) : 0;
        for (int32_t p = first; p <= position; ++p) {
          double score = 0;
          for (size_t d = 0; d < kd; ++d) {
            score += double{q[(token * heads + h) * kd + d]} *
                     double{key_pool[(row_of(p) + kv_head) * kd + d]};
          }
          const double weight = std::exp(score * double{call.scale});
          total += weight;
          for (size_t d = 0; d < vd; ++d) {
            sum[d] += weight * double{value_pool[(row_of(p) + kv_head) * vd + d]};
          }
        }
        for (size_t d = 0; d < vd; ++d) {
          worst =
              std::max(worst, std::abs(sum[d] / total - double{out[(token * heads + h) * vd + d]}));
        }
      }
    }
  }
  expect(worst < 1e-5, "attention differs from the plain loop");
  pamx_batch_free(handle);
}

// A prompt in one go, token by token and in chunks, through pools of every format: the same bits.
void check_invariance(const Geometry& g, pamx::Dtype dtype, pamx::Dtype pool_dtype) {
  std::mt19937 random(9);
  const int32_t tokens = g.query_lens[0];
  const auto blocks = (tokens + g.block_size - 1) / g.block_size;
  const auto size = [&](int32_t heads, int32_t dim) {
    return static_cast<size_t>(tokens) * static_cast<size_t>(heads * dim);
  };
  const auto element = static_cast<size_t>(pamx::size_of(dtype));
  const auto fill = [&](size_t count) {
    std::vector<char> bytes(count * element);
    for (size_t i = 0; i < count; ++i) {
      // Numbers from 1/8 to 8 in each of the formats.
      const auto bits = static_cast<uint32_t>(random());
      if (dtype == pamx::Dtype::float32) {
        const uint32_t x = (bits & 0x80000000u) | (124u + bits % 6) << 23 | (bits >> 8 & 0x7fffffu);
        std::memcpy(&bytes[i * 4], &x, 4);
      } else {
        const bool half = dtype == pamx::Dtype::float16;
        const uint32_t x =
            (bits >> 16 & 0x8000u) | (half ? (12u + bits % 6) << 10 | (bits >> 8 & 0x3ffu)
                                           : (124u + bits % 6) << 7 | (bits >> 8 & 0x7fu));
        const auto h = static_cast<uint16_t>(x);
        std::memcpy(&bytes[i * 2], &h, 2);
      }
    }
    return bytes;
  };
  auto q = fill(size(g.heads, g.k_dim)), k = fill(size(g.kv_heads, g.k_dim)),
       v = fill(size(g.kv_heads, g.v_dim));
  std::vector<float> sinks(static_cast<size_t>(g.heads), 0.5f);
  std::vector<int32_t> table(static_cast<size_t>(blocks));
  for (int32_t i = 0; i < blocks; ++i) table[static_cast<size_t>(i)] = blocks - 1 - i;

  const auto attend = [&](std::vector<int32_t> chunks) {
    const auto slots = static_cast<size_t>(blocks * g.block_size * g.kv_heads);
    const auto pool_element = static_cast<size_t>(pamx::size_of(pool_dtype));
    // Not a number wherever nothing was written.
    std::vector<char> key_pool(slots * static_cast<size_t>(g.k_dim) * pool_element, '\xff');
    std::vector<char> value_pool(slots * static_cast<size_t>(g.v_dim) * pool_element, '\xff');
    std::vector<char> out(size(g.heads, g.v_dim) * element);
    int32_t start = 0;
    for (size_t c = 0; start < tokens; ++c) {
      const int32_t count = std::min(chunks[c % chunks.size()], tokens - start);
      const int32_t starts[] = {0, count}, context[] = {start + count};
      const auto rows = [&](std::vector<char>& data, int32_t heads, int32_t dim) {
        return pamx::cpu::Rows{data.data() + static_cast<size_t>(start * heads * dim) * element,
                               int64_t{heads} * dim, dim, 1};
      };
      pamx::cpu::PagedAttention call;
      call.dtype = dtype;
      call.pool_dtype = pool_dtype;
      call.heads = g.heads;
      call.kv_heads = g.kv_heads;
      call.k_dim = g.k_dim;
      call.v_dim = g.v_dim;
      call.scale = 0.03f;
      call.window = g.window;
      call.softcap = g.window > 0 ? 3.0f : 0.0f;
      call.sinks = sinks.data();
      call.queries = rows(q, g.heads, g.k_dim);
      call.keys = rows(k, g.kv_heads, g.k_dim);
      call.values = rows(v, g.kv_heads, g.v_dim);
      call.out = rows(out, g.heads, g.v_dim);
      call.key_pool = key_pool.data();
      call.value_pool = value_pool.data();
      call.num_sequences = 1;
      call.block_size = g.block_size;
      call.max_blocks = blocks;
      call.query_starts = starts;
      call.context_lens = context;
      call.block_tables = table.data();
      pamx::cpu::run(call);
      start += count;
    }
    return out;
  };
  const auto at_once = attend({tokens});
  expect(attend({1}) == at_once, "a prompt token by token has other bits than at once");
  expect(attend({1, 70, 2, 130, 33}) == at_once, "a prompt in chunks has other bits than at once");
}

void check_16_bit_formats() {
  for (const auto dtype : {pamx::Dtype::float16, pamx::Dtype::bfloat16}) {
    // Token 0 attends to itself: the output is its value, whatever the bits.
    for (uint32_t base = 0; base < 65536; base += 8) {
      std::vector<uint16_t> value(8), out(8), zero(8), keys(64), values(64);
      for (uint32_t i = 0; i < 8; ++i) value[i] = static_cast<uint16_t>(base + i);
      const int32_t starts[] = {0, 1}, context[] = {1}, table[] = {0};
      pamx::cpu::PagedAttention call;
      call.dtype = call.pool_dtype = dtype;
      call.heads = call.kv_heads = 1;
      call.k_dim = call.v_dim = 8;
      call.queries = call.keys = {zero.data(), 8, 8, 1};
      call.values = {value.data(), 8, 8, 1};
      call.out = {out.data(), 8, 8, 1};
      call.key_pool = keys.data();
      call.value_pool = values.data();
      call.num_sequences = 1;
      call.block_size = 8;
      call.max_blocks = 1;
      call.query_starts = starts;
      call.context_lens = context;
      call.block_tables = table;
      pamx::cpu::run(call);
      const uint16_t infinity = dtype == pamx::Dtype::float16 ? 0x7c00 : 0x7f80;
      for (uint32_t i = 0; i < 8; ++i) {
        const bool finite = (value[i] & infinity) != infinity;
        const bool same = out[i] == value[i] || ((out[i] | value[i]) & 0x7fff) == 0;
        if (finite && !same) {
          expect(false, "a 16-bit value changed on its way through the kernel");
          return;
        }
      }
    }
  }
}

void check_worker_pool() {
  for (const int32_t threads : {1, 2, 5}) {
    pamx::cpu::WorkerPool pool(threads);
    for (int round = 0; round < 300; ++round) {
      std::vector<std::atomic<int>> calls(static_cast<size_t>(round % 40));
      pool.run(static_cast<int64_t>(calls.size()),
               [&](int64_t i) { calls[static_cast<size_t>(i)]++; });
      for (auto& c : calls) expect(c == 1, "an item did not run exactly once");
    }
  }
  // Two callers at once, and the number of threads changed under them.
  std::atomic<int64_t> sum{0};
  const auto caller = [&] {
    for (int round = 0; round < 200; ++round) {
      pamx::cpu::worker_pool()->run(50, [&](int64_t i) { sum += i; });
    }
  };
  std::thread a(caller), b(caller);
  for (int round = 0; round < 50; ++round) pamx::cpu::set_num_threads(1 + round % 4);
  a.join();
  b.join();
  expect(sum == 2 * 200 * 1225, "two callers at once lost or repeated work");
}

void check_bad_batches() {
  const int32_t starts[] = {0, 3}, lens[] = {11}, tables[] = {4, 1};
  const pamx_batch_desc good{1, 6, 8, 2, starts, lens, tables};
  pamx_batch* batch = nullptr;
  const auto refused = [&](pamx_batch_desc desc, const char* what) {
    expect(pamx_batch_create(&desc, &batch) == PAMX_INVALID_ARGUMENT, what);
    expect(batch == nullptr, "a refused batch left a handle");
  };
  pamx_batch_desc d = good;
  d.num_blocks = 4;
  refused(d, "block id outside the pool");
  d = good;
  d.max_blocks = 1;
  refused(d, "block table too short");
  d = good;
  d.block_tables = nullptr;
  refused(d, "null block table");
  d = good;
  d.num_sequences = -1;
  refused(d, "negative number of sequences");
  const int32_t negative[] = {-11};
  d = good;
  d.context_lens = negative;
  refused(d, "negative context length");
}

}  // namespace

int main() {
  const char* wanted = std::getenv("PAMX_CPU_ISA");
  const char* used = pamx::cpu::isa_name(pamx::cpu::isa());
  if (wanted && std::strcmp(wanted, used) != 0) {
    std::printf("native tests: this processor has no %s\n", wanted);
    return EXIT_SUCCESS;
  }
  check_bad_batches();
  check_worker_pool();
  check_16_bit_formats();
  check_attention({6, 2, 64, 64, 16, 0, {1}, {100}}, 1);
  check_attention({8, 8, 24, 40, 8, 0, {50}, {50}}, 2);
  check_attention({3, 1, 128, 64, 32, 9, {5, 1, 33}, {70, 32, 33}}, 3);
  check_attention({40, 1, 8, 256, 16, 16, {17, 2}, {17, 129}}, 4);
  check_attention({8, 2, 64, 64, 16, 0, {1, 5}, {1300, 600}}, 5);
  check_attention({8, 2, 128, 72, 8, 300, {40, 1}, {600, 900}}, 6);
  using pamx::Dtype;
  for (const auto& [dtype, pool_dtype] :
       {std::pair{Dtype::float32, Dtype::float32}, std::pair{Dtype::float32, Dtype::float16},
        std::pair{Dtype::float32, Dtype::bfloat16}, std::pair{Dtype::float16, Dtype::float16},
        std::pair{Dtype::bfloat16, Dtype::bfloat16}}) {
    check_invariance({6, 2, 24, 40, 16, 0, {330}, {330}}, dtype, pool_dtype);
    check_invariance({12, 1, 64, 32, 32, 90, {330}, {330}}, dtype, pool_dtype);
  }
  failures += check_boundary();
  failures += check_linear();
  failures += check_small_operations();
  failures += check_fused_blocks();
  failures += check_under_noise();
  if (failures == 0) std::printf("native tests passed (%s kernels)\n", used);
  return failures == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}
