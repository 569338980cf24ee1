// What a GPU plan tells the dispatch diagnostics.
#pragma once

#include "plan/gpu_attention.hpp"

namespace pamx::plan {

// When a call is queued, on the thread that queues it.
void record_queued(const GpuPlan& plan);
// When it is encoded, on whatever thread.
void count_run(const GpuPlan& plan);

}  // namespace pamx::plan
