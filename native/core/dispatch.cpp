// Counters and this thread's last call.
#include "core/dispatch.hpp"

#include <atomic>

#include "core/status.hpp"

namespace pamx {

namespace {

std::atomic<int64_t> counts[kDispatchKinds];
thread_local bool recording = false;
thread_local CallRecord last;

}  // namespace

void count_dispatch(DispatchKind kind) noexcept {
  counts[static_cast<int32_t>(kind)].fetch_add(1, std::memory_order_relaxed);
}

bool dispatch_diagnostics() noexcept { return recording; }

void record_dispatch(const CallRecord& call) noexcept {
  if (recording) last = call;
}

}  // namespace pamx

extern "C" int32_t pamx_set_dispatch_diagnostics(int32_t on) {
  const bool before = pamx::recording;
  pamx::recording = on != 0;
  pamx::last = {};
  return before;
}

extern "C" int32_t pamx_last_dispatch(int32_t* kinds, int32_t* partitions) {
  for (int32_t i = 0; i < pamx::last.parts; ++i) {
    if (kinds) kinds[i] = static_cast<int32_t>(pamx::last.part[i].kind);
    if (partitions) partitions[i] = pamx::last.part[i].partition;
  }
  return pamx::last.parts;
}

extern "C" void pamx_clear_last_dispatch(void) { pamx::last = {}; }

extern "C" int64_t pamx_dispatch_count(int32_t kind) {
  return kind >= 0 && kind < pamx::kDispatchKinds
             ? pamx::counts[kind].load(std::memory_order_relaxed)
             : 0;
}
