// A pool of threads that shares out numbered, independent items of work.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

namespace pamx::cpu {

// The caller works too, and never waits for a worker that has not yet begun: items are claimed
// one by one from an atomic counter, so a worker that the system delays costs at most the item
// it holds. Workers sleep between jobs. When two threads call at once, the second one does its
// items alone.
class WorkerPool {
 public:
  explicit WorkerPool(int32_t num_threads);
  ~WorkerPool();
  WorkerPool(const WorkerPool&) = delete;
  WorkerPool& operator=(const WorkerPool&) = delete;

  int32_t num_threads() const { return static_cast<int32_t>(workers_.size()) + 1; }

  // Calls item(0) .. item(count - 1), each once, and returns when all have ended. `item` must
  // not throw: it runs on threads that nobody could tell.
  void run(int64_t count, const std::function<void(int64_t)>& item);

 private:
  struct Job {
    const std::function<void(int64_t)>* item;
    int64_t count;
    std::atomic<int64_t> next{0};
    std::atomic<int64_t> ended{0};
  };
  void work_on(Job& job);
  void worker();

  std::mutex caller_;  // held by the one caller that the workers help
  std::mutex mutex_;   // guards job_, generation_ and stop_
  std::condition_variable new_job_;
  std::condition_variable job_ended_;
  std::shared_ptr<Job> job_;  // shared with workers, which may look at it after run() returned
  uint64_t generation_ = 0;
  bool stop_ = false;
  std::vector<std::thread> workers_;
};

// The pool that kernels use, made at first use. Callers keep the returned reference while they
// work, so that set_num_threads can replace the pool at any time. A child process after fork
// gets a pool of its own: threads do not survive fork.
std::shared_ptr<WorkerPool> worker_pool();
void set_num_threads(int32_t num_threads);
int32_t num_threads();

}  // namespace pamx::cpu
