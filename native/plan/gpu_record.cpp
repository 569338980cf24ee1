// The decode rows' kind, then the prefill rows'.
#include "plan/gpu_record.hpp"

namespace pamx::plan {

void record_queued(const GpuPlan& plan) {
  if (!dispatch_diagnostics()) return;
  CallRecord call;
  for (const GpuPart* part : {&plan.decode, &plan.prefill}) {
    if (part->sequences) call.part[call.parts++] = {part->kind, part->partition};
  }
  record_dispatch(call);
}

void count_run(const GpuPlan& plan) {
  for (const GpuPart* part : {&plan.decode, &plan.prefill}) {
    if (part->sequences) count_dispatch(part->kind);
  }
}

}  // namespace pamx::plan
