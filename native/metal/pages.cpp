// Copies go out in groups whose members do not touch each other's blocks.
#include "metal/pages.hpp"

#include <unordered_set>

#include "../../shaders/params.h"

namespace pamx::metal {

namespace {

// Pairs travel with the command, which takes 4,096 bytes.
constexpr size_t kLargestGroup = 4096 / sizeof(BlockCopy);

void dispatch(KernelEncoder& encoder, const plan::Launch& launch) {
  if (launch.threadgroup_bytes) encoder.set_threadgroup_memory(launch.threadgroup_bytes);
  encoder.dispatch(launch.grid, launch.threadgroup);
}

void encode_group(KernelEncoder& encoder, Library& library, const Buffer& pool,
                  uint32_t block_bytes, const BlockCopy* copies, size_t count) {
  plan::LaunchShape shape;
  shape.kernel = plan::Kernel::copy_blocks;
  shape.tokens = static_cast<int32_t>(count);
  shape.block_bytes = static_cast<int32_t>(block_bytes);
  const plan::Launch launch = plan::launch_of(shape);
  const CopyBlocksParams params{static_cast<uint32_t>(count), block_bytes};
  encoder.set_pipeline(library.pipeline(launch));
  encoder.set_output(kCopyPool, pool);
  encoder.set_bytes(kCopyPairs, copies, count * sizeof(BlockCopy));
  encoder.set_bytes(kCopyParams, &params, sizeof params);
  dispatch(encoder, launch);
}

}  // namespace

void encode_copies(KernelEncoder& encoder, Library& library, const Buffer& pool,
                   uint32_t block_bytes, const std::vector<BlockCopy>& copies) {
  std::unordered_set<int32_t> read, written;
  size_t first = 0;
  for (size_t i = 0; i < copies.size(); ++i) {
    const auto [source, target] = copies[i];
    const bool touches = written.count(source) || written.count(target) || read.count(target);
    if (touches || i - first == kLargestGroup) {
      encode_group(encoder, library, pool, block_bytes, copies.data() + first, i - first);
      encoder.barrier();
      read.clear();
      written.clear();
      first = i;
    }
    read.insert(source);
    written.insert(target);
  }
  if (first < copies.size()) {
    encode_group(encoder, library, pool, block_bytes, copies.data() + first, copies.size() - first);
  }
}

void encode_gather(KernelEncoder& encoder, Library& library, const Buffer& pool,
                   const Buffer& table, const Buffer& out, uint32_t tokens, uint32_t block_size,
                   uint32_t token_bytes) {
  plan::LaunchShape shape;
  shape.kernel = plan::Kernel::gather_blocks;
  shape.block_size = static_cast<int32_t>(block_size);
  shape.tokens = static_cast<int32_t>(tokens);
  shape.block_bytes = static_cast<int32_t>(token_bytes);
  const plan::Launch launch = plan::launch_of(shape);
  const GatherBlocksParams params{tokens, block_size, token_bytes};
  encoder.set_pipeline(library.pipeline(launch));
  encoder.set_input(kGatherPool, pool);
  encoder.set_input(kGatherBlockTable, table);
  encoder.set_output(kGatherOut, out);
  encoder.set_bytes(kGatherParams, &params, sizeof params);
  dispatch(encoder, launch);
}

}  // namespace pamx::metal
