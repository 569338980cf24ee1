// Numbers at the edges of their types, through the C interfaces that plan and describe: whatever
// they are, the answer is a status. Under UBSan, an overflow on the way to it ends the program.
#include <cmath>
#include <cstdio>
#include <iterator>
#include <limits>
#include <random>

#include "core/status.hpp"
#include "cpu/linear/linear.hpp"
#include "expect.hpp"

namespace {

// Draws numbers that are often an ordinary one, often an edge, and seldom anything else.
class Numbers {
 public:
  explicit Numbers(uint32_t seed) : random_(seed) {}

  int32_t any() {
    static constexpr int32_t kLikely[] = {0, 1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 576};
    static constexpr int32_t kEdges[] = {
        INT32_MIN, INT32_MIN + 1, INT32_MIN + 8, -8,      -1,      INT32_MAX - 7, INT32_MAX - 1,
        INT32_MAX, 1 << 30,       1 << 28,       1 << 24, 1 << 16, 1 << 21,       65535 * 8};
    switch (below(8)) {
      case 0:
        return static_cast<int32_t>(random_());
      case 1:
      case 2:
        return kEdges[below(std::size(kEdges))];
      default:
        return kLikely[below(std::size(kLikely))];
    }
  }
  uint32_t below(size_t count) { return static_cast<uint32_t>(random_() % count); }

 private:
  std::mt19937 random_;
};

void check_launches() {
  Numbers numbers(1);
  int served = 0;
  for (int i = 0; i < 200000; ++i) {
    pamx_launch_desc desc{};
    desc.kernel = static_cast<int32_t>(numbers.below(12));
    desc.dtype = static_cast<int32_t>(numbers.below(4));
    desc.pool_dtype = desc.dtype;
    for (int32_t* field : {&desc.heads, &desc.kv_heads, &desc.k_dim, &desc.v_dim, &desc.block_size,
                           &desc.partition, &desc.num_partitions, &desc.rows, &desc.tokens,
                           &desc.block_bytes, &desc.window, &desc.softcap, &desc.sinks}) {
      *field = numbers.any();
    }
    pamx_launch launch;
    if (pamx_metal_launch(&desc, &launch) != PAMX_OK) continue;
    ++served;
    for (int side = 0; side < 3; ++side) {
      expect(launch.grid[side] >= 1 && launch.threadgroup[side] >= 1, "an empty launch");
    }
    expect(launch.threadgroup_bytes <= 32 * 1024 && launch.threadgroup_bytes % 16 == 0,
           "threadgroup memory");
    expect(launch.tokens_a_row >= 1, "tokens of a row");
  }
  expect(served > 1000, "too few of the launches are possible");
}

// An ordinary description of which a few numbers are changed, so that many can be planned.
void check_plans() {
  Numbers numbers(2);
  int served = 0;
  for (int i = 0; i < 20000; ++i) {
    pamx_gpu_attention_desc desc{};
    desc.heads = 32;
    desc.kv_heads = 8;
    desc.k_dim = desc.v_dim = 128;
    desc.block_size = 16;
    pamx_gpu_machine machine{};
    machine.cores = 10;
    machine.tensor_units = -1;
    int32_t starts[] = {0, 1, 40, 41}, lens[] = {5000, 100, 1}, sequences = 3;
    int32_t* const fields[] = {&desc.heads,
                               &desc.kv_heads,
                               &desc.k_dim,
                               &desc.v_dim,
                               &desc.window,
                               &desc.block_size,
                               &machine.cores,
                               &machine.tensor_units,
                               &machine.tensor_compiler,
                               &machine.threadgroup_memory,
                               &machine.threadgroup_threads,
                               &starts[0],
                               &starts[2],
                               &lens[0],
                               &lens[1],
                               &lens[2]};
    for (uint32_t changes = numbers.below(4); changes > 0; --changes) {
      *fields[numbers.below(std::size(fields))] = numbers.any();
    }
    if (numbers.below(8) == 0) sequences = static_cast<int32_t>(numbers.below(5)) - 1;
    starts[2] %= 1 << 12;  // a plan lists each query token
    desc.mla = numbers.below(8) == 0;
    desc.sinks = static_cast<int32_t>(numbers.below(2));
    desc.dtype = desc.pool_dtype = static_cast<int32_t>(numbers.below(3));
    pamx_overrides overrides{};
    overrides.force_partition = numbers.below(4) ? 0 : numbers.any();
    pamx_gpu_plan* plan = nullptr;
    if (pamx_plan_gpu_attention(&desc, &machine, &overrides, sequences, starts, lens, nullptr,
                                nullptr, &plan) == PAMX_OK) {
      ++served;
      const int64_t scratch = pamx_gpu_plan_scratch(plan);
      expect(scratch >= 0 && scratch <= int64_t{512} << 20, "a plan's scratch");
      expect(pamx_gpu_plan_launches(plan) >= 1, "a plan without launches");
    }
    pamx_gpu_plan_free(plan);

    const pamx_cpu_attention_desc cpu{desc.heads,    desc.kv_heads,
                                      desc.k_dim,    desc.v_dim,
                                      desc.window,   static_cast<int32_t>(numbers.below(65)),
                                      numbers.any(), desc.block_size};
    pamx_cpu_attention_plan made{};
    if (pamx_plan_cpu_attention(&cpu, sequences, starts, lens, &made) == PAMX_OK) {
      ++served;
      expect(made.items >= 1 && made.work >= 1 && made.scratch_bytes >= 1, "an empty CPU plan");
    }
  }
  expect(served > 5000, "too few of the plans are possible");
}

void check_matrices() {
  Numbers numbers(3);
  for (int i = 0; i < 100000; ++i) {
    const pamx::cpu::MatrixFormat format{numbers.any(), numbers.any(),
                                         static_cast<int32_t>(numbers.below(10)), numbers.any(),
                                         pamx::Dtype::float32};
    const int status = pamx::guarded([&] {
      check(format);
      // What a float of every element takes, so that none can have too few bytes.
      const double least = static_cast<double>(format.outputs) * format.inputs *
                           (format.bits ? format.bits / 8.0 : 4.0);
      expect(static_cast<double>(format.bytes()) >= least, "a matrix that is too small");
    });
    expect(status == PAMX_OK || status == PAMX_INVALID_ARGUMENT, "a format's status");
  }
}

}  // namespace

int check_boundary() {
  check_launches();
  check_plans();
  check_matrices();
  return failures;
}
