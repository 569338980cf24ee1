// The plan of one paged-attention call on a GPU: pure arithmetic, no device, no MLX.
//
// Decode rows (sequences that bring one query token) and prefill rows are planned apart. Whether
// decode rows are split, and into which partitions, follows the work of the whole step, so a row's
// last bits can depend on its company; a forced partition makes them independent of it.
//
// The rule for gqa_decode is vllm-metal's (github.com/vllm-project/vllm-metal,
// docs/gqa-decode.md): of 512 and 256 tokens, the larger partition P for which
//   query heads * sum over sequences of floor(length / P)  >=  33 * GPU cores.
// All thresholds are in shaders/limits.h.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "../../shaders/params.h"
#include "core/dispatch.hpp"
#include "plan/cpu_attention.hpp"
#include "plan/gpu_machine.hpp"
#include "plan/launch/launch.hpp"
#include "plan/overrides.hpp"

namespace pamx::plan {

struct GpuAttention {
  AttentionGeometry geometry;  // MLA: k_dim is latent and rotary parts together, v_dim the latent
  bool mla = false;
  bool softcap = false;
  bool sinks = false;
  Dtype dtype = Dtype::float16;
  Dtype pool_dtype = Dtype::float16;
  int32_t block_size = 0;
};

// What a kernel can do with a shape: a reason against it, or its dispatch.
struct Ability {
  std::string why_not;  // one clause; empty: it can
  Launch launch;
  int32_t tokens_a_row = 1;
};
using Abilities = std::function<Ability(const LaunchShape&)>;

// What the kernels of this library can do.
Ability library_ability(const LaunchShape& shape);

// One dispatch. A reducer works on the rows of the dispatch before it.
struct GpuDispatch {
  LaunchShape shape;
  Launch launch;
  std::vector<WorkRow> rows;
  int32_t tokens_a_row = 1;
  // Where partial results lie in the call's scratch, in bytes; -1: there are none.
  int64_t partial_out = -1;
  int64_t partial_stats = -1;
};

struct TurnedDown {
  std::string path;
  std::string reason;  // a clause
};

// What becomes of the decode rows, or of the prefill rows.
struct GpuPart {
  int32_t sequences = 0;  // 0: the step has none, and nothing else here has a meaning
  int32_t longest = 0;    // tokens
  DispatchKind kind = DispatchKind::unified;
  Kernel kernel = Kernel::paged_attention;
  int32_t rows = 0;
  int32_t partition = 0;       // tokens; 0: not split
  int32_t num_partitions = 0;  // of the longest row
  int64_t work = 0;  // simdgroups: gqa_decode's by the rule above, otherwise those launched
  int64_t scratch_bytes = 0;
  std::string path;  // as in `turned_down`
  std::string why;   // a clause
  std::vector<TurnedDown> turned_down;
};

struct GpuPlan {
  GpuPart decode;
  GpuPart prefill;
  int64_t scratch_bytes = 0;
  std::vector<GpuDispatch> dispatches;  // in order; each one's results are seen by the next
};

// Throws Error(PAMX_UNSUPPORTED) if no kernel serves, or if what is forced cannot run, with each
// reason.
GpuPlan plan_gpu_attention(const GpuAttention& call, const AttentionSequences& sequences,
                           const GpuMachine& machine, const Overrides& overrides,
                           const Abilities& abilities = library_ability);

// What the plan is and why, in sentences: the choice, and the reason against each other path.
std::string explain_gpu_attention(const GpuAttention& call, const GpuMachine& machine,
                                  const Overrides& overrides, const GpuPlan& plan);

}  // namespace pamx::plan
