// Encoding one attention call: the new rows into the pools, then its plan's dispatches.
#pragma once

#include <vector>

#include "metal/encoder.hpp"
#include "plan/gpu_attention.hpp"

namespace pamx::metal {

// Rows [tokens, heads, dim]: strides in elements, the elements of a head contiguous.
struct StridedRows {
  Buffer buffer;
  uint64_t token_stride = 0;
  uint64_t head_stride = 0;
};

// What stays the same from layer to layer of a step.
struct StepBuffers {
  Buffer block_tables, context_lens, query_starts;
  Buffer slots;      // where the new rows go: slots_of
  Buffer work_rows;  // ReadyPlan::work_rows
};

// shaders/params.h gives each buffer's type and shape.
struct AttentionCall {
  plan::GpuAttention shape;
  int32_t tokens = 0;      // query tokens
  int32_t max_blocks = 0;  // row length of block_tables
  float scale = 0;
  float softcap = 0;
  StridedRows queries;
  StridedRows keys, values;  // without buffers: nothing is written
  Buffer key_pool, value_pool;
  Buffer sinks;    // float; without an object: there are none
  Buffer scratch;  // the plan's scratch_bytes
  Buffer out;
  StepBuffers step;
};

// A plan whose kernels are compiled: encoding it cannot fail for want of one.
struct ReadyPlan {
  plan::GpuPlan plan;
  std::vector<Pipeline> pipelines;  // of the plan's dispatches
  plan::Launch write;               // kv_write; its pipeline is null if nothing is written
  Pipeline write_pipeline;

  // The work rows of the dispatches, one after the other.
  std::vector<WorkRow> work_rows() const;
};

// tokens: query tokens of the step. Throws as Library::pipeline does.
ReadyPlan ready(Library& library, const plan::GpuAttention& shape, int32_t tokens, bool writes,
                plan::GpuPlan plan);

void encode_attention(KernelEncoder& encoder, const AttentionCall& call, const ReadyPlan& ready);

}  // namespace pamx::metal
