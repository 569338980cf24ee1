// 10,000 small steps while the system takes the CPU away at random: every one gives the same bits.
//
// Noise threads at the lowest priority keep the CPUs busy and yield, and one of them moves the
// process's threads to a single random CPU and back, as a loaded machine or `taskset` would.

#include <sched.h>
#include <sys/resource.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "cpu/attention/attention.hpp"
#include "cpu/worker_pool.hpp"

namespace {

constexpr int kSteps = 10000, kThreads = 4;

#if defined(__linux__)
void move_threads(const std::atomic<bool>& stop) {
  cpu_set_t allowed;
  if (sched_getaffinity(0, sizeof allowed, &allowed) != 0) return;
  std::vector<int> cpus;
  for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu) {
    if (CPU_ISSET(cpu, &allowed)) cpus.push_back(cpu);
  }
  std::mt19937 random(1);
  std::vector<int> threads;
  const auto list = [&] {
    threads.clear();
    std::error_code error;
    for (const auto& entry : std::filesystem::directory_iterator("/proc/self/task", error)) {
      threads.push_back(std::atoi(entry.path().filename().c_str()));
    }
  };
  while (!stop) {
    list();
    for (const int thread : threads) {
      if (random() % 2) continue;
      cpu_set_t where = allowed;
      if (random() % 4) {
        CPU_ZERO(&where);
        CPU_SET(cpus[random() % cpus.size()], &where);
      }
      sched_setaffinity(thread, sizeof where, &where);  // it may have ended meanwhile
    }
    std::this_thread::sleep_for(std::chrono::microseconds(200));
  }
  list();
  for (const int thread : threads) sched_setaffinity(thread, sizeof allowed, &allowed);
}
#else
void move_threads(const std::atomic<bool>&) {}
#endif

void be_busy(const std::atomic<bool>& stop) {
#if defined(__linux__)
  setpriority(PRIO_PROCESS, static_cast<id_t>(gettid()), 19);
#endif
  while (!stop) std::this_thread::yield();
}

// Items of unequal length, each a sum in an order of its own.
uint64_t pool_step(const std::vector<float>& data) {
  std::vector<float> sums(24);
  pamx::cpu::worker_pool()->run(static_cast<int64_t>(sums.size()), [&](int64_t i) {
    const auto stride = static_cast<size_t>(i) + 1;
    for (size_t k = 0; k < data.size(); k += stride) sums[stride - 1] += data[k];
  });
  uint64_t hash = 0;
  for (const float sum : sums) {
    uint32_t bits;
    std::memcpy(&bits, &sum, 4);
    hash = hash * 1099511628211u + bits;
  }
  return hash;
}

}  // namespace

// Returns the number of failures.
int check_under_noise() {
  const int32_t before = pamx::cpu::num_threads();
  pamx::cpu::set_num_threads(kThreads);
  std::mt19937 random(2);
  std::normal_distribution<float> normal;
  const auto fill = [&](size_t n) {
    std::vector<float> v(n);
    for (auto& x : v) x = normal(random);
    return v;
  };
  const auto data = fill(1000);

  // Three sequences on pages, one of them with a chunk of its prompt.
  constexpr int32_t kHeads = 4, kKvHeads = 2, kDim = 32, kBlock = 16, kBlocks = 24, kTokens = 7;
  const int32_t starts[] = {0, 1, 6, kTokens}, context[] = {100, 37, 128};
  int32_t tables[3 * 8];
  for (int32_t i = 0; i < kBlocks; ++i) tables[i] = (i * 7) % kBlocks;
  auto queries = fill(kTokens * kHeads * kDim);
  auto keys = fill(kBlocks * kBlock * kKvHeads * kDim);
  auto values = fill(kBlocks * kBlock * kKvHeads * kDim);
  std::vector<float> out(queries.size());
  pamx::cpu::PagedAttention call;
  call.heads = kHeads;
  call.kv_heads = kKvHeads;
  call.k_dim = call.v_dim = kDim;
  call.scale = 0.2f;
  call.queries = {queries.data(), kHeads * kDim, kDim, 1};
  call.out = {out.data(), kHeads * kDim, kDim, 1};
  call.key_pool = keys.data();
  call.value_pool = values.data();
  call.num_sequences = 3;
  call.block_size = kBlock;
  call.max_blocks = 8;
  call.query_starts = starts;
  call.context_lens = context;
  call.block_tables = tables;

  pamx::cpu::run(call);
  const std::vector<float> want = out;
  const uint64_t want_sums = pool_step(data);

  std::atomic<bool> stop{false};
  std::vector<std::thread> noise;
  noise.emplace_back([&] { move_threads(stop); });
  for (int i = 0; i < 2; ++i) noise.emplace_back([&] { be_busy(stop); });
  int wrong = 0;
  for (int step = 0; step < kSteps; ++step) {
    if (step % 2) {
      std::fill(out.begin(), out.end(), 0.0f);
      pamx::cpu::run(call);
      wrong += std::memcmp(out.data(), want.data(), out.size() * sizeof(float)) != 0;
    } else {
      wrong += pool_step(data) != want_sums;
    }
  }
  stop = true;
  for (auto& thread : noise) thread.join();
  pamx::cpu::set_num_threads(before);
  if (wrong) std::fprintf(stderr, "FAILED: %d of %d steps under noise differ\n", wrong, kSteps);
  return wrong != 0;
}
