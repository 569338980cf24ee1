// Encoding copies of whole blocks inside a pool, and of a sequence's tokens out of it.
#pragma once

#include <utility>
#include <vector>

#include "metal/encoder.hpp"

namespace pamx::metal {

struct BlockCopy {
  int32_t source;
  int32_t target;
};

// In order: a copy sees what those before it left.
void encode_copies(KernelEncoder& encoder, Library& library, const Buffer& pool,
                   uint32_t block_bytes, const std::vector<BlockCopy>& copies);

// `tokens` tokens of the sequence whose blocks `table` (int) lists, densely into `out`.
void encode_gather(KernelEncoder& encoder, Library& library, const Buffer& pool,
                   const Buffer& table, const Buffer& out, uint32_t tokens, uint32_t block_size,
                   uint32_t token_bytes);

}  // namespace pamx::metal
