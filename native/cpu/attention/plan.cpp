// The planner behind the C interface: the same plan that a call with these lengths would follow.
#include <algorithm>

#include "core/status.hpp"
#include "cpu/isa/cache.hpp"
#include "cpu/worker_pool.hpp"
#include "plan/cpu_attention.hpp"
#include "plan/overrides.hpp"

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
    require(desc->kv_heads >= 1 && desc->heads >= 1 && desc->heads % desc->kv_heads == 0,
            std::to_string(desc->heads) + " query heads are not a multiple of " +
                std::to_string(desc->kv_heads) + " KV heads");
    require(desc->window >= 0 && desc->threads >= 0 && desc->l2_bytes >= 0,
            "window, threads and l2_bytes must be at least 0");
    require(num_sequences >= 1 && query_starts[0] == 0, "a step has sequences, from token 0 on");
    for (int32_t s = 0; s < num_sequences; ++s) {
      const int64_t queries = int64_t{query_starts[s + 1]} - query_starts[s];
      require(queries >= 1 && context_lens[s] >= queries,
              "sequence " + std::to_string(s) + " has " + std::to_string(queries) +
                  " query tokens of " + std::to_string(context_lens[s]));
    }
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
