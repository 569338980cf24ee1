// What the layers of a step share on a GPU: the tables of its batch, and a plan for each geometry.
#pragma once

#include <mutex>
#include <vector>

#include "metal/attention.hpp"
#include "metal/gpu.hpp"
#include "mlx/array.h"
#include "mlx/gpu.hpp"

namespace pamx::gpu {

// The batch's tables as arrays: copied into memory that the GPU shares, with nothing to wait for.
struct StepArrays {
  explicit StepArrays(const Batch& batch);

  int32_t tokens, max_blocks;
  mx::array block_tables, context_lens, query_starts, slots;
};

class Attention {
 public:
  Attention(metal::Gpu& gpu, const Batch& batch, std::shared_ptr<const StepArrays> arrays,
            const AttentionRequest& request, const plan::Overrides& overrides);

  const AttentionRequest request;
  const plan::Overrides overrides;  // that the plan was made with
  const plan::GpuAttention shape;
  const metal::ReadyPlan ready;
  const std::shared_ptr<const StepArrays> arrays;
  const mx::array work_rows;
};

class Step {
 public:
  explicit Step(const Batch& batch) : arrays_(std::make_shared<const StepArrays>(batch)) {}

  std::shared_ptr<const Attention> attention(metal::Gpu& gpu, const Batch& batch,
                                             const AttentionRequest& request);

 private:
  const std::shared_ptr<const StepArrays> arrays_;
  std::mutex mutex_;
  std::vector<std::shared_ptr<const Attention>> planned_;
};

// The batch's own, made by the first layer.
Step& step_of(const Batch& batch);

}  // namespace pamx::gpu
