// Worker pool: claiming, waiting, and surviving fork.
#include "cpu/worker_pool.hpp"

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <mutex>
#include <system_error>

namespace pamx::cpu {

namespace {

// How long a worker without work stays awake. Between two operations of a step lie a few
// microseconds, between two tokens of one sequence a few hundred; waking a thread costs about
// fifty.
constexpr std::chrono::microseconds kWorkerSpin{100};
// Items are numbered in 32 bits; of more, which nobody has, the caller does all.
constexpr int64_t kMostShared = INT32_MAX;
// How long a caller spins for an item that a worker still holds. Items take about this long.
constexpr std::chrono::microseconds kCallerSpin{50};

void pause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

// Polls until `done` or until the time is over; returns whether it is done. The second half
// of the time lets other threads have the CPU: on a busy machine the one that is waited for may
// need it.
template <class Done>
bool spin(std::chrono::microseconds time, Done&& done) {
  using Clock = std::chrono::steady_clock;
  const auto begin = Clock::now();
  for (;;) {
    for (int i = 0; i < 32; ++i) {
      if (done()) return true;
      pause();
    }
    const auto spent = Clock::now() - begin;
    if (spent > time) return done();
    if (spent > time / 2) std::this_thread::yield();
  }
}

}  // namespace

WorkerPool::WorkerPool(int32_t num_threads) {
  workers_.reserve(static_cast<size_t>(num_threads - 1));
  try {
    for (int32_t i = 1; i < num_threads; ++i) workers_.emplace_back([this] { worker(); });
  } catch (const std::system_error&) {
    // The system has no more threads, or no room for their stacks: fewer do the same work.
  }
}

WorkerPool::~WorkerPool() {
  stop_ = true;
  wakes_.fetch_add(1);
  wakes_.notify_all();
  for (auto& thread : workers_) thread.join();
}

bool WorkerPool::work_appeared() const {
  return static_cast<uint32_t>(word_.load(std::memory_order_relaxed)) <
         count_.load(std::memory_order_relaxed);
}

// Claims an item of the open job and does it; returns whether there was one.
bool WorkerPool::work_on_one_item() {
  uint64_t word = word_.load(std::memory_order_acquire);
  for (;;) {
    const auto item = static_cast<uint32_t>(word);
    // Before the others: whoever sees a job's count sees its call and context, and its generation.
    const uint32_t count = count_.load(std::memory_order_acquire);
    if (item >= count) return false;
    const Call call = call_.load(std::memory_order_relaxed);
    void* const context = context_.load(std::memory_order_relaxed);
    // If the job changed since `word` was read, so did its generation, and this fails.
    if (word_.compare_exchange_weak(word, word + 1, std::memory_order_acq_rel,
                                    std::memory_order_acquire)) {
      call(context, item);
      if (ended_.fetch_add(1, std::memory_order_acq_rel) + 1 == count) ended_.notify_all();
      return true;
    }
  }
}

void WorkerPool::worker() {
  while (!stop_) {
    while (work_on_one_item()) {
    }
    if (spin(kWorkerSpin, [this] { return stop_.load() || work_appeared(); })) continue;
    const uint32_t seen = wakes_.load();
    sleepers_.fetch_add(1);
    // Sequential consistency: either this sees the new job, or its caller sees the sleeper.
    if (!stop_ && !(static_cast<uint32_t>(word_.load()) < count_.load())) wakes_.wait(seen);
    sleepers_.fetch_sub(1);
  }
}

void WorkerPool::wait_for_the_end(int64_t count) {
  const auto all = static_cast<uint32_t>(count);
  if (spin(kCallerSpin, [&] { return ended_.load(std::memory_order_acquire) == all; })) return;
  for (uint32_t now; (now = ended_.load(std::memory_order_acquire)) != all;) ended_.wait(now);
}

void WorkerPool::run_job(int64_t count, Call call, void* context) {
  if (count <= 1 || count > kMostShared || workers_.empty() ||
      busy_.exchange(true, std::memory_order_acquire)) {
    for (int64_t i = 0; i < count; ++i) call(context, i);
    return;
  }
  // Nothing is claimable now: the last job's items are all claimed and ended. Generations come
  // round after 2^32 jobs; no thread sleeps through that many.
  const uint64_t generation = (word_.load(std::memory_order_relaxed) >> 32) + 1;
  ended_.store(0, std::memory_order_relaxed);
  count_.store(0, std::memory_order_relaxed);
  word_.store(generation << 32, std::memory_order_release);
  call_.store(call, std::memory_order_relaxed);
  context_.store(context, std::memory_order_relaxed);
  count_.store(static_cast<uint32_t>(count));
  if (sleepers_.load() > 0) {
    wakes_.fetch_add(1);
    for (int64_t i = std::min<int64_t>(count - 1, sleepers_.load()); i > 0; --i) {
      wakes_.notify_one();
    }
  }
  while (work_on_one_item()) {
  }
  wait_for_the_end(count);
  busy_.store(false, std::memory_order_release);
}

namespace {

// Never destroyed: at process exit MLX's threads may still be inside a kernel.
struct Shared {
  std::mutex mutex;
  std::shared_ptr<WorkerPool> pool;
  int32_t wanted = std::max(1, static_cast<int32_t>(std::thread::hardware_concurrency()));
  pid_t process = getpid();
};

Shared*& shared() {
  static Shared* instance = new Shared;
  return instance;
}

Shared& shared_of_this_process() {
  Shared*& instance = shared();
  if (instance->process != getpid()) {
    auto* fresh = new Shared;  // the parent's locks and threads are lost to this child
    fresh->wanted = instance->wanted;
    instance = fresh;
  }
  return *instance;
}

}  // namespace

std::shared_ptr<WorkerPool> worker_pool() {
  Shared& s = shared_of_this_process();
  std::lock_guard lock(s.mutex);
  if (!s.pool) s.pool = std::make_shared<WorkerPool>(s.wanted);
  return s.pool;
}

void set_num_threads(int32_t num_threads) {
  Shared& s = shared_of_this_process();
  std::shared_ptr<WorkerPool> old;  // joined after the lock is gone
  std::lock_guard lock(s.mutex);
  if (num_threads == s.wanted) return;
  s.wanted = num_threads;
  old = std::move(s.pool);
}

int32_t num_threads() {
  Shared& s = shared_of_this_process();
  std::lock_guard lock(s.mutex);
  return s.wanted;
}

}  // namespace pamx::cpu
