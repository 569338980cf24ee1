// GPU plans through the C interface.
#include <memory>

#include "plan/gpu_attention.hpp"
#include "plan/launch/desc.hpp"
#include "plan/step_limits.hpp"

struct pamx_gpu_plan {
  pamx::plan::GpuPlan plan;
  std::string text;
};

namespace pamx::plan {

namespace {

GpuAttention call_of(const pamx_gpu_attention_desc& desc) {
  check_heads(desc.heads, desc.kv_heads, desc.k_dim, desc.v_dim);
  require(desc.window >= 0, "window must be at least 0");
  require(desc.block_size == 8 || desc.block_size == 16 || desc.block_size == 32,
          "block_size must be 8, 16 or 32, not " + std::to_string(desc.block_size));
  GpuAttention call;
  call.geometry = {desc.heads, desc.kv_heads, desc.k_dim, desc.v_dim, desc.window};
  call.mla = desc.mla != 0;
  call.softcap = desc.softcap != 0;
  call.sinks = desc.sinks != 0;
  call.dtype = dtype_of(desc.dtype, "dtype");
  call.pool_dtype = dtype_of(desc.pool_dtype, "pool_dtype");
  call.block_size = desc.block_size;
  return call;
}

GpuMachine machine_of(const pamx_gpu_machine& desc) {
  require(desc.cores >= 0 && desc.threadgroup_memory >= 0 && desc.threadgroup_threads >= 0,
          "cores, threadgroup_memory and threadgroup_threads must be at least 0");
  GpuMachine machine;
  machine.architecture = desc.architecture ? desc.architecture : "";
  machine.cores = desc.cores;
  machine.tensor_units =
      desc.tensor_units < 0 ? has_tensor_units(machine.architecture) : desc.tensor_units != 0;
  machine.tensor_compiler = desc.tensor_compiler != 0;
  if (desc.threadgroup_memory > 0) machine.threadgroup_memory = desc.threadgroup_memory;
  if (desc.threadgroup_threads > 0) machine.threadgroup_threads = desc.threadgroup_threads;
  return machine;
}

Overrides overrides_of(const pamx_overrides* given) {
  if (!given) return overrides();
  require(given->force_partition >= 0, "force_partition must be at least 0");
  return {given->disable_gqa_decode != 0, given->disable_nax != 0, given->force_partition};
}

Ability asked(pamx_ability ability, void* context, const LaunchShape& shape) {
  const pamx_launch_desc desc = desc_of(shape);
  pamx_launch launch{};
  Ability able;
  if (const char* why = ability(context, &desc, &launch)) {
    able.why_not = *why ? why : "it was not said why";
    return able;
  }
  const auto text = [](const char* s) { return std::string(s ? s : ""); };
  able.launch.source = text(launch.source);
  able.launch.function = text(launch.function);
  able.launch.instantiation = text(launch.instantiation);
  able.launch.constant_mask = launch.constant_mask;
  able.launch.block_size = launch.block_size;
  able.launch.has_window = launch.has_window != 0;
  able.launch.has_softcap = launch.has_softcap != 0;
  able.launch.has_sinks = launch.has_sinks != 0;
  for (size_t i = 0; i < 3; ++i) {
    able.launch.grid[i] = launch.grid[i];
    able.launch.threadgroup[i] = launch.threadgroup[i];
  }
  able.launch.threadgroup_bytes = launch.threadgroup_bytes;
  able.tokens_a_row = launch.tokens_a_row;
  require(able.tokens_a_row >= 1, "a row of work takes at least 1 token");
  return able;
}

const GpuPart& part_of(const pamx_gpu_plan* plan, int32_t part) {
  require(plan != nullptr, "the plan is null");
  require(part == 0 || part == 1, "a plan has the parts 0 and 1");
  return part == 0 ? plan->plan.decode : plan->plan.prefill;
}

static_assert(sizeof(WorkRow) == 3 * sizeof(int32_t));

}  // namespace

}  // namespace pamx::plan

extern "C" int pamx_plan_gpu_attention(const pamx_gpu_attention_desc* desc,
                                       const pamx_gpu_machine* machine,
                                       const pamx_overrides* overrides, int32_t num_sequences,
                                       const int32_t* query_starts, const int32_t* context_lens,
                                       pamx_ability ability, void* ability_context,
                                       pamx_gpu_plan** plan) {
  using namespace pamx::plan;
  return pamx::guarded([&] {
    pamx::require(desc && machine && query_starts && context_lens && plan, "an argument is null");
    *plan = nullptr;
    const GpuAttention call = call_of(*desc);
    const GpuMachine gpu = machine_of(*machine);
    const Overrides forced = overrides_of(overrides);
    check_sequences(num_sequences, query_starts, context_lens);
    Abilities abilities = library_ability;
    if (ability) {
      abilities = [=](const LaunchShape& shape) { return asked(ability, ability_context, shape); };
    }
    auto made = std::make_unique<pamx_gpu_plan>();
    made->plan = plan_gpu_attention(call, {num_sequences, query_starts, context_lens}, gpu, forced,
                                    abilities);
    made->text = explain_gpu_attention(call, gpu, forced, made->plan);
    *plan = made.release();
  });
}

extern "C" void pamx_gpu_plan_free(pamx_gpu_plan* plan) { delete plan; }

extern "C" const char* pamx_gpu_plan_text(const pamx_gpu_plan* plan) {
  return plan ? plan->text.c_str() : "";
}

extern "C" int64_t pamx_gpu_plan_scratch(const pamx_gpu_plan* plan) {
  return plan ? plan->plan.scratch_bytes : 0;
}

extern "C" int pamx_gpu_plan_part_of(const pamx_gpu_plan* plan, int32_t part,
                                     pamx_gpu_plan_part* out) {
  return pamx::guarded([&] {
    pamx::require(out != nullptr, "the place for the part is null");
    const pamx::plan::GpuPart& from = pamx::plan::part_of(plan, part);
    out->sequences = from.sequences;
    out->kind = static_cast<int32_t>(from.kind);
    out->kernel = static_cast<int32_t>(from.kernel);
    out->rows = from.rows;
    out->partition = from.partition;
    out->num_partitions = from.num_partitions;
    out->turned_down = static_cast<int32_t>(from.turned_down.size());
    out->work = from.work;
    out->scratch_bytes = from.scratch_bytes;
    out->path = from.path.c_str();
    out->why = from.why.c_str();
  });
}

extern "C" int pamx_gpu_plan_turned_down(const pamx_gpu_plan* plan, int32_t part, int32_t i,
                                         const char** path, const char** reason) {
  return pamx::guarded([&] {
    pamx::require(path && reason, "the place for path or reason is null");
    const auto& all = pamx::plan::part_of(plan, part).turned_down;
    pamx::require(i >= 0 && static_cast<size_t>(i) < all.size(),
                  "there are " + std::to_string(all.size()) + " paths that were turned down");
    *path = all[static_cast<size_t>(i)].path.c_str();
    *reason = all[static_cast<size_t>(i)].reason.c_str();
  });
}

extern "C" int32_t pamx_gpu_plan_launches(const pamx_gpu_plan* plan) {
  return plan ? static_cast<int32_t>(plan->plan.dispatches.size()) : 0;
}

extern "C" int pamx_gpu_plan_launch_of(const pamx_gpu_plan* plan, int32_t i,
                                       pamx_gpu_plan_launch* out) {
  return pamx::guarded([&] {
    pamx::require(plan && out, "plan and place must not be null");
    const auto& all = plan->plan.dispatches;
    pamx::require(i >= 0 && static_cast<size_t>(i) < all.size(),
                  "the plan has " + std::to_string(all.size()) + " launches");
    const auto& from = all[static_cast<size_t>(i)];
    out->shape = pamx::plan::desc_of(from.shape);
    pamx::plan::fill(from.launch, from.tokens_a_row, &out->launch);
    out->rows = reinterpret_cast<const int32_t*>(from.rows.data());
    out->partial_out = from.partial_out;
    out->partial_stats = from.partial_stats;
  });
}

extern "C" int pamx_overrides_here(pamx_overrides* out) {
  return pamx::guarded([&] {
    pamx::require(out != nullptr, "the place for overrides is null");
    const auto found = pamx::plan::overrides();
    out->disable_gqa_decode = found.disable_gqa_decode;
    out->disable_nax = found.disable_nax;
    out->force_partition = found.force_partition;
  });
}

extern "C" int pamx_force_partition(int32_t tokens) {
  return pamx::guarded([&] {
    pamx::require(tokens >= 0, "a partition cannot have " + std::to_string(tokens) + " tokens");
    pamx::plan::force_partition(tokens);
  });
}
