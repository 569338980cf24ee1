// Where a step's new rows go.
#pragma once

#include <cstdint>
#include <vector>

#include "core/batch.hpp"

namespace pamx {

// For each query token the slot (block * block_size + offset) of its key and value.
std::vector<int64_t> slots_of(const Batch& batch);

}  // namespace pamx
