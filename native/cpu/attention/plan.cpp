// The planner behind the C interface: the same plan that a call with these lengths would follow.
#include <algorithm>

#include "core/status.hpp"
#include "cpu/isa/cache.hpp"
#include "cpu/worker_pool.hpp"
#include "plan/cpu_attention.hpp"
#include "plan/overrides.hpp"
#include "plan/step_limits.hpp"

namespace {

constexpr int32_t kMostThreads = 1024;
// Query tokens times heads: there is an item of work for every few of them.
constexpr int64_t kMostRows = int64_t{1} << 26;
constexpr int64_t kMostWork = int64_t{1} << 60;  // multiply-adds, some of them counted twice

void check_work(const pamx_cpu_attention_desc& desc, int32_t num_sequences,
                const int32_t* query_starts, const int32_t* context_lens) {
  const int64_t tokens = query_starts[num_sequences];
  pamx::require(tokens * desc.heads <= kMostRows,
                std::to_string(tokens) + " query tokens of " + std::to_string(desc.heads) +
                    " heads are " + std::to_string(tokens * desc.heads) +
                    " query rows; the most that can be planned for a CPU are " +
                    std::to_string(kMostRows));
  int64_t seen = 0;
  for (int32_t s = 0; s < num_sequences; ++s) {
    seen += (int64_t{query_starts[s + 1]} - query_starts[s]) * context_lens[s];
  }
  const int64_t each = 2 * int64_t{desc.heads} * (int64_t{desc.k_dim} + desc.v_dim);
  pamx::require(seen <= kMostWork / each,
                "the step is too much work to be planned: " + std::to_string(tokens) +
                    " query tokens see " + std::to_string(seen) + " positions with " +
                    std::to_string(desc.heads) + " heads; the most are " +
                    std::to_string(kMostWork / each));
}

}  // namespace

extern "C" int pamx_plan_cpu_attention(const pamx_cpu_attention_desc* desc, int32_t num_sequences,
                                       const int32_t* query_starts, const int32_t* context_lens,
                                       pamx_cpu_attention_plan* plan) {
  return pamx::guarded([&] {
    using pamx::require;
    require(desc && query_starts && context_lens && plan, "an argument is null");
    const auto dim_is_served = [](int32_t dim) { return dim >= 8 && dim <= 512 && dim % 8 == 0; };
    require(dim_is_served(desc->k_dim) && dim_is_served(desc->v_dim),
            "head sizes must be multiples of 8 up to 512, not " + std::to_string(desc->k_dim) +
                " and " + std::to_string(desc->v_dim));
    pamx::plan::check_heads(desc->heads, desc->kv_heads, desc->k_dim, desc->v_dim);
    require(desc->window >= 0 && desc->threads >= 0 && desc->l2_bytes >= 0,
            "window, threads and l2_bytes must be at least 0");
    require(desc->threads <= kMostThreads, "threads must be at most " +
                                               std::to_string(kMostThreads) + ", not " +
                                               std::to_string(desc->threads));
    pamx::plan::check_sequences(num_sequences, query_starts, context_lens);
    check_work(*desc, num_sequences, query_starts, context_lens);
    const int32_t forced = pamx::plan::overrides().force_partition;
    if (forced > 0) {
      require(desc->block_size >= 1, "block_size must be at least 1 where a partition is forced");
      const std::string why = pamx::plan::against_forced_partition(forced, desc->block_size);
      require(why.empty(), why);
    }
    const pamx::plan::AttentionGeometry geometry{desc->heads, desc->kv_heads, desc->k_dim,
                                                 desc->v_dim, desc->window};
    const pamx::plan::AttentionSequences sequences{num_sequences, query_starts, context_lens};
    const pamx::plan::CpuLimits limits{desc->threads > 0 ? desc->threads : pamx::cpu::num_threads(),
                                       desc->l2_bytes > 0 ? desc->l2_bytes : pamx::cpu::l2_bytes(),
                                       forced};
    pamx::plan::AttentionPlan made;
    pamx::plan::plan_cpu_attention(geometry, sequences, limits, &made);
    static thread_local std::string text;
    text = pamx::plan::explain_cpu_attention(geometry, limits, made);
    plan->partition = made.partition;
    plan->threads = made.threads;
    plan->items = static_cast<int64_t>(made.items.size());
    plan->few_rows_items =
        std::count_if(made.items.begin(), made.items.end(), [](auto& i) { return i.few_rows; });
    plan->folds = static_cast<int64_t>(made.folds.size());
    plan->work = made.work;
    plan->scratch_bytes = made.scratch_floats * 4;
    plan->partial_bytes = made.partial_floats * 4;
    plan->text = text.c_str();
  });
}
