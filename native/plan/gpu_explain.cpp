// A GPU plan in sentences.
#include "plan/gpu_attention.hpp"

namespace pamx::plan {

namespace {

std::string number(int64_t n) { return std::to_string(n); }

std::string mib(int64_t bytes) {
  const int64_t tenths = (bytes * 10 + (1 << 19)) >> 20;
  return number(tenths / 10) + "." + number(tenths % 10) + " MiB";
}

std::string count(int64_t n, const char* noun) {
  return number(n) + " " + noun + (n == 1 ? "" : "s");
}

bool is_tuned(const AttentionGeometry& g) {
  for (const auto& [heads, kv_heads, dim] : limits::TUNED_GEOMETRIES) {
    if (g.heads == static_cast<int32_t>(heads) && g.kv_heads == static_cast<int32_t>(kv_heads) &&
        g.k_dim == static_cast<int32_t>(dim) && g.v_dim == g.k_dim) {
      return true;
    }
  }
  return false;
}

void explain_part(const GpuPart& part, const char* rows, std::string* text) {
  const auto say = [&](const std::string& line) { *text += line + "\n"; };
  if (part.sequences == 0) return;
  say(std::string(rows) + ": " + count(part.sequences, "sequence") + ", the longest of " +
      count(part.longest, "token") + ", in " + count(part.rows, "row") + " of work.");
  say("kernel: " + part.path + ", since " + part.why + ".");
  if (part.partition > 0) {
    say("partition: " + number(part.partition) + " tokens, at most " + number(part.num_partitions) +
        " a row, merged by the reducer.");
  } else {
    say("partition: none; a row's context is read as a whole.");
  }
  say("work: " + count(part.work, "simdgroup") +
      (part.kind == DispatchKind::gqa_decode ? " in full partitions." : " launched."));
  for (const TurnedDown& t : part.turned_down) say("not " + t.path + ": " + t.reason + ".");
}

}  // namespace

std::string explain_gpu_attention(const GpuAttention& call, const GpuMachine& machine,
                                  const Overrides& overrides, const GpuPlan& plan) {
  std::string text;
  const auto say = [&](const std::string& line) { text += line + "\n"; };
  const AttentionGeometry& g = call.geometry;
  say("geometry: " + count(g.heads, "query head") + ", " + count(g.kv_heads, "KV head") +
      ", head size " + number(g.k_dim) + (g.v_dim != g.k_dim ? " and " + number(g.v_dim) : "") +
      ", blocks of " + number(call.block_size) + (call.mla ? ", latent cache" : "") +
      (g.window > 0 ? ", window of " + number(g.window) : "") + ".");
  if (plan.decode.sequences > 0 && plan.decode.kind == DispatchKind::gqa_decode && !is_tuned(g)) {
    say("budget: measured for other geometries, and generalised to this one.");
  }
  say("GPU: " + (machine.cores > 0 ? count(machine.cores, "core") : "cores unknown") +
      (machine.architecture.empty() ? "" : ", " + machine.architecture) +
      (machine.tensor_units ? ", tensor units" : "") + ".");
  explain_part(plan.decode, "decode rows", &text);
  explain_part(plan.prefill, "prefill rows", &text);
  if (overrides.force_partition > 0 && plan.decode.sequences == 0) {
    say("forced: partitions of " + number(overrides.force_partition) +
        " tokens, for decode rows, of which there are none.");
  }
  say("scratch: " + mib(plan.scratch_bytes) + " of at most " +
      mib(static_cast<int64_t>(limits::SCRATCH_CAP)) + ".");
  std::string order;
  for (const GpuDispatch& d : plan.dispatches) {
    order += (order.empty() ? "" : ", then ") + d.launch.function;
  }
  say("launches: " + order + ".");
  return text;
}

}  // namespace pamx::plan
