// One step's packed sequences, validated once and shared by every layer's call.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "core/attached.hpp"
#include "core/status.hpp"

namespace pamx {

// Immutable after validation. See pamx_batch_desc for the meaning of each field.
struct Batch {
  int32_t num_blocks = 0;
  int32_t block_size = 0;
  int32_t max_blocks = 0;
  std::vector<int32_t> query_starts;
  std::vector<int32_t> context_lens;
  std::vector<int32_t> block_tables;
  Attached on_gpu;  // these tables as a GPU reads them, and plans made for them

  int32_t num_sequences() const { return static_cast<int32_t>(context_lens.size()); }
  int32_t num_tokens() const { return query_starts.back(); }

  static std::shared_ptr<const Batch> create(const pamx_batch_desc* desc);
};

}  // namespace pamx

// The handle that C holds: queued operations keep their own reference to the batch.
struct pamx_batch {
  std::shared_ptr<const pamx::Batch> batch;
};
