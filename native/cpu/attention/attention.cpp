// Choosing the kernels for this processor, and sharing a call out over the worker pool.
#include "cpu/attention/attention.hpp"

#include <algorithm>
#include <vector>

#include "core/dispatch.hpp"
#include "core/status.hpp"
#include "cpu/isa/cache.hpp"
#include "cpu/isa/isa.hpp"
#include "cpu/worker_pool.hpp"
#include "plan/overrides.hpp"

namespace pamx::cpu {

const Kernels& kernels() {
#if defined(__x86_64__)
  if (isa() >= Isa::avx512) return avx512::kernels;
  if (isa() >= Isa::avx2) return avx2::kernels;
#elif defined(__aarch64__)
  if (isa() >= Isa::neon) return neon::kernels;
#endif
  return portable::kernels;
}

namespace {

// Query tokens whose new rows are written as one item.
constexpr int32_t kWriteTokens = 32;

// Memory that a thread keeps from call to call, in whole cache lines.
class Scratch {
 public:
  float* floats(int64_t count) {
    const auto wanted = static_cast<size_t>(count) + 16;
    if (memory_.size() < wanted) memory_.resize(wanted);
    auto address = reinterpret_cast<uintptr_t>(memory_.data());
    return memory_.data() + (64 - address % 64) % 64 / sizeof(float);
  }

 private:
  std::vector<float> memory_;
};

Scratch& item_scratch() {
  static thread_local Scratch scratch;
  return scratch;
}

void write_all(const PagedAttention& call, const Kernels& k, int32_t threads) {
  if (!call.keys.data) return;
  const int32_t tokens = call.query_starts[call.num_sequences];
  const auto sequence_tokens = [&](int32_t s) {
    return call.query_starts[s + 1] - call.query_starts[s];
  };
  if (threads == 1 || tokens <= kWriteTokens) {
    for (int32_t s = 0; s < call.num_sequences; ++s) k.write_rows(call, s, 0, sequence_tokens(s));
    return;
  }
  struct Piece {
    int32_t sequence, begin, end;
  };
  static thread_local std::vector<Piece> pieces;
  pieces.clear();
  for (int32_t s = 0; s < call.num_sequences; ++s) {
    for (int32_t begin = 0; begin < sequence_tokens(s); begin += kWriteTokens) {
      pieces.push_back({s, begin, std::min(begin + kWriteTokens, sequence_tokens(s))});
    }
  }
  const Piece* piece = pieces.data();
  worker_pool()->run(std::ssize(pieces), [&, piece](int64_t i) {
    k.write_rows(call, piece[i].sequence, piece[i].begin, piece[i].end);
  });
}

}  // namespace

void plan_of(const PagedAttention& call, plan::AttentionPlan* plan) {
  plan::plan_cpu_attention({call.heads, call.kv_heads, call.k_dim, call.v_dim, call.window},
                           {call.num_sequences, call.query_starts, call.context_lens},
                           {num_threads(), l2_bytes(), call.partition}, plan);
}

int32_t queue(const plan::AttentionGeometry& geometry, int32_t block_size) {
  const int32_t forced = plan::overrides().force_partition;
  if (forced > 0) {
    const std::string why = plan::against_forced_partition(forced, block_size);
    if (!why.empty()) throw Error(PAMX_INVALID_ARGUMENT, why);
  }
  if (dispatch_diagnostics()) {
    record_dispatch(DispatchKind::cpu,
                    forced > 0 ? forced : plan::attention_partition(geometry, l2_bytes()));
  }
  return forced;
}

void run(const PagedAttention& call) {
  count_dispatch(DispatchKind::cpu);
  static thread_local plan::AttentionPlan plan;
  static thread_local Scratch partials;
  const Kernels& k = kernels();
  plan_of(call, &plan);
  const AttentionWork work{&call, plan.partition, partials.floats(plan.partial_floats)};
  // Workers see the caller's plan, not one of their own.
  const plan::AttentionPlan& p = plan;
  write_all(call, k, p.threads);
  const auto shared_out = [&](int64_t count, const auto& item) {
    if (p.threads == 1) {
      for (int64_t i = 0; i < count; ++i) item(i);
    } else {
      worker_pool()->run(count, item);
    }
  };
  shared_out(std::ssize(p.items), [&](int64_t i) {
    k.attend(work, p.items[static_cast<size_t>(i)], item_scratch().floats(p.scratch_floats));
  });
  shared_out(std::ssize(p.folds), [&](int64_t i) {
    k.fold(work, p.folds[static_cast<size_t>(i)], item_scratch().floats(call.v_dim + 2));
  });
}

}  // namespace pamx::cpu
