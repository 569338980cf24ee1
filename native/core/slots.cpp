// From positions to slots.
#include "core/slots.hpp"

namespace pamx {

std::vector<int64_t> slots_of(const Batch& batch) {
  std::vector<int64_t> slots;
  slots.reserve(static_cast<size_t>(batch.num_tokens()));
  for (int32_t s = 0; s < batch.num_sequences(); ++s) {
    const int32_t queries = batch.query_starts[s + 1] - batch.query_starts[s];
    const int32_t* table = batch.block_tables.data() + int64_t{s} * batch.max_blocks;
    for (int32_t p = batch.context_lens[s] - queries; p < batch.context_lens[s]; ++p) {
      slots.push_back(int64_t{table[p / batch.block_size]} * batch.block_size +
                      p % batch.block_size);
    }
  }
  return slots;
}

}  // namespace pamx
