// Which attention kernels ran: a counter for each kind, and what a thread asked for last.
#pragma once

#include <cstdint>

namespace pamx {

enum class DispatchKind : int32_t {
  gqa_decode = 0,
  split_kv = 1,
  unified = 2,
  tiled_prefill = 3,
  nax_prefill = 4,
  mla = 5,
  cpu = 6,
  reference = 7,
};
constexpr int32_t kDispatchKinds = 8;

// A call that ran, whatever thread it ran on. One relaxed addition.
void count_dispatch(DispatchKind kind) noexcept;

// What one call does: its decode rows and its prefill rows may take different kernels.
struct CallRecord {
  struct Part {
    DispatchKind kind;
    int32_t partition;  // tokens; 0: not split
  };
  int32_t parts = 0;
  Part part[2] = {};
};

// Called by whoever queues a call, on the thread that queues it: MLX evaluates later, elsewhere.
// Kept only while that thread has diagnostics on.
bool dispatch_diagnostics() noexcept;
void record_dispatch(const CallRecord& call) noexcept;

inline void record_dispatch(DispatchKind kind, int32_t partition) noexcept {
  if (dispatch_diagnostics()) record_dispatch(CallRecord{1, {{kind, partition}, {}}});
}

}  // namespace pamx
