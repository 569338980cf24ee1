// A build without Metal: MLX's GPU streams are refused.
#include "mlx/gpu.hpp"

#include "mlx/device.h"

namespace pamx::gpu {

namespace {

[[noreturn]] void refuse() {
  throw Error(PAMX_UNSUPPORTED,
              "MLX's default device is the GPU, and this build has no GPU kernels");
}

}  // namespace

class Attention {};

void check_stream(mx::Stream stream) {
  if (stream.device != mx::Device::cpu) refuse();
}

std::shared_ptr<const Attention> prepare(mx::Stream, const Batch&, const AttentionRequest&) {
  refuse();
}

void run(mx::Stream, const Attention&, const AttentionArrays&) { refuse(); }

void copy_blocks(mx::Stream, const std::vector<int32_t>&, const std::vector<int32_t>&, mx::array&) {
  refuse();
}

}  // namespace pamx::gpu
