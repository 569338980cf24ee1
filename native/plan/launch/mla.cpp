// Dispatches of shaders/mla_decode.metal and shaders/mla_prefill.metal.
#include "plan/launch/tiles.hpp"

namespace pamx::plan {

namespace {

constexpr int32_t kDecodeTile = 16;  // context tokens that mla_decode takes at a time

std::string why_not(const LaunchShape& shape) {
  if (shape.kv_heads != 1) return "a latent cache has one KV head";
  if (shape.v_dim <= 0) return "queries have no latent part";
  if (shape.k_dim <= shape.v_dim) return "queries have no rotary part beside the latent one";
  LaunchShape parts = shape;
  parts.k_dim = shape.k_dim - shape.v_dim;
  if (std::string why = why_not_attention(parts); !why.empty()) return why;
  if (shape.partition == 0) return "";
  if (shape.kernel == Kernel::mla_prefill) return "it does not split a sequence";
  if (shape.partition < 0 || shape.partition % kDecodeTile != 0) {
    return "partitions of " + std::to_string(shape.partition) + " tokens are not a multiple of " +
           std::to_string(kDecodeTile);
  }
  if (shape.num_partitions <= 0) return "there are no partitions";
  return "";
}

uint32_t groups_of(int32_t heads, uint32_t size) {
  return (static_cast<uint32_t>(heads) + size - 1) / size;
}

Launch describe(const LaunchShape& shape) {
  const std::string latent = std::to_string(shape.v_dim);
  const std::string rope = std::to_string(shape.k_dim - shape.v_dim);
  const std::string name = latent + "_" + rope, arguments = latent + ", " + rope;
  Launch launch;
  if (shape.kernel == Kernel::mla_prefill) {
    launch = attention_launch(shape, "mla_prefill.metal", "mla_prefill", name, arguments);
    launch.grid[0] = groups_of(shape.heads, 8);
  } else {
    const bool split = shape.partition != 0;
    launch = attention_launch(shape, "mla_decode.metal", split ? "mla_decode_split" : "mla_decode",
                              name, arguments);
    launch.grid[0] = groups_of(shape.heads, limits::MLA_DECODE_HEADS);
    if (split) {
      launch.grid[1] = static_cast<uint32_t>(shape.num_partitions);
      launch.constant_mask &= ~(1u << kHasSinks);
      launch.has_sinks = false;
    }
  }
  launch.grid[2] = static_cast<uint32_t>(shape.rows);
  launch.threadgroup = {limits::SIMD_WIDTH * limits::MLA_SIMDGROUPS, 1, 1};
  return launch;
}

int32_t tokens(const LaunchShape& shape) {
  return shape.kernel == Kernel::mla_prefill ? limits::MLA_PREFILL_TOKENS : 1;
}

}  // namespace

const Family kMla{why_not, describe, tokens};

}  // namespace pamx::plan
