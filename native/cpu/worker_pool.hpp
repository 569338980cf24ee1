// A pool of threads that shares out numbered, independent items of work.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <thread>
#include <type_traits>
#include <vector>

namespace pamx::cpu {

// The caller works too, and never waits for a worker that has not begun: items are claimed one
// by one, so a worker that the system delays costs at most the item it holds. Between jobs a
// worker spins for a moment, because the next layer's job is usually a few microseconds away,
// and then sleeps: an idle pool uses no CPU. When two threads call at once, or an item calls,
// the later caller does its items alone.
//
// `word_` says everything that may change under a worker's eyes: the job's generation in the
// upper half, the next unclaimed item in the lower. A claim is one compare-and-swap on it. Its
// success proves that the job that the worker read about is still the open one, so a job can
// live on its caller's stack.
class WorkerPool {
 public:
  // The caller's thread and up to num_threads - 1 others, as many as the system gives.
  explicit WorkerPool(int32_t num_threads);
  ~WorkerPool();
  WorkerPool(const WorkerPool&) = delete;
  WorkerPool& operator=(const WorkerPool&) = delete;

  int32_t num_threads() const { return static_cast<int32_t>(workers_.size()) + 1; }

  // Calls item(0) .. item(count - 1), each once, and returns when all have ended. `item` must
  // not throw: it runs on threads that nobody could tell.
  template <class Item>
  void run(int64_t count, Item&& item) {
    using Plain = std::remove_reference_t<Item>;
    run_job(
        count, [](void* context, int64_t i) { (*static_cast<Plain*>(context))(i); },
        const_cast<void*>(static_cast<const void*>(&item)));
  }

 private:
  using Call = void (*)(void* context, int64_t item);

  void run_job(int64_t count, Call call, void* context);
  bool work_on_one_item();
  bool work_appeared() const;
  void wait_for_the_end(int64_t count);
  void worker();

  std::atomic<bool> busy_{false};  // whether a caller has the workers
  // Written only while no item is claimed or claimable; read by workers before they claim.
  std::atomic<Call> call_{nullptr};
  std::atomic<void*> context_{nullptr};
  std::atomic<uint32_t> count_{0};

  alignas(64) std::atomic<uint64_t> word_{0};
  alignas(64) std::atomic<uint32_t> ended_{0};
  alignas(64) std::atomic<uint32_t> sleepers_{0};
  std::atomic<uint32_t> wakes_{0};
  std::atomic<bool> stop_{false};
  std::vector<std::thread> workers_;
};

// The pool that kernels use, made at first use. Callers keep the returned reference while they
// work, so that set_num_threads can replace the pool at any time. A child process after fork
// gets a pool of its own: threads do not survive fork.
std::shared_ptr<WorkerPool> worker_pool();
void set_num_threads(int32_t num_threads);
int32_t num_threads();

}  // namespace pamx::cpu
