// What an A/B run forces: the one place where PAMX_* variables of the planner are read.
#pragma once

#include <cstdint>

namespace pamx::plan {

struct Overrides {
  bool disable_gqa_decode = false;  // PAMX_DISABLE_GQA_DECODE
  bool disable_nax = false;         // PAMX_DISABLE_NAX
  int32_t force_partition = 0;      // PAMX_FORCE_PARTITION, tokens; 0: by rule
};

// The environment's, read once, with this thread's force_partition in front. Throws Error if a
// variable cannot be understood: a run that forces nothing by mistake would compare A with A.
Overrides overrides();

// The partition of calls that this thread makes from now on; 0 ends that.
void force_partition(int32_t tokens);

}  // namespace pamx::plan
