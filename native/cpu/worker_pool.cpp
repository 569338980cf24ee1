// Worker pool: claiming, waiting, and surviving fork.
#include "cpu/worker_pool.hpp"

#include <unistd.h>

#include <algorithm>

namespace pamx::cpu {

WorkerPool::WorkerPool(int32_t num_threads) {
  workers_.reserve(static_cast<size_t>(num_threads - 1));
  for (int32_t i = 1; i < num_threads; ++i) workers_.emplace_back([this] { worker(); });
}

WorkerPool::~WorkerPool() {
  {
    std::lock_guard lock(mutex_);
    stop_ = true;
  }
  new_job_.notify_all();
  for (auto& thread : workers_) thread.join();
}

void WorkerPool::work_on(Job& job) {
  int64_t mine = 0;
  for (int64_t i; (i = job.next.fetch_add(1, std::memory_order_relaxed)) < job.count; ++mine) {
    (*job.item)(i);
  }
  if (mine == 0) return;
  if (job.ended.fetch_add(mine, std::memory_order_acq_rel) + mine == job.count) {
    // Taking the mutex keeps this notice from falling between the caller's check and its sleep.
    std::lock_guard lock(mutex_);
    job_ended_.notify_all();
  }
}

void WorkerPool::worker() {
  uint64_t seen = 0;
  std::unique_lock lock(mutex_);
  for (;;) {
    new_job_.wait(lock, [&] { return stop_ || generation_ != seen; });
    if (stop_) return;
    seen = generation_;
    const auto job = job_;
    lock.unlock();
    if (job) work_on(*job);
    lock.lock();
  }
}

void WorkerPool::run(int64_t count, const std::function<void(int64_t)>& item) {
  std::unique_lock caller(caller_, std::try_to_lock);
  if (count <= 1 || workers_.empty() || !caller.owns_lock()) {
    for (int64_t i = 0; i < count; ++i) item(i);
    return;
  }
  const auto job = std::make_shared<Job>();
  job->item = &item;
  job->count = count;
  {
    std::lock_guard lock(mutex_);
    job_ = job;
    ++generation_;
  }
  if (count > static_cast<int64_t>(workers_.size())) {
    new_job_.notify_all();
  } else {
    for (int64_t i = 1; i < count; ++i) new_job_.notify_one();
  }
  work_on(*job);
  std::unique_lock lock(mutex_);
  job_ended_.wait(lock, [&] { return job->ended.load(std::memory_order_acquire) == count; });
  job_.reset();
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
