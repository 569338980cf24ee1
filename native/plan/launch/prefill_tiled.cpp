// Dispatches of shaders/prefill_tiled.metal.
#include "plan/launch/tiles.hpp"

namespace pamx::plan {

namespace {

Launch describe(const LaunchShape& shape) {
  const std::string size = std::to_string(shape.k_dim);
  Launch launch = attention_launch(shape, "prefill_tiled.metal", "prefill_tiled", size, size);
  launch.grid = {static_cast<uint32_t>(shape.heads), 1, static_cast<uint32_t>(shape.rows)};
  launch.threadgroup = {limits::SIMD_WIDTH * limits::PREFILL_TOKENS / 8, 1, 1};
  return launch;
}

int32_t tokens(const LaunchShape&) { return limits::PREFILL_TOKENS; }

}  // namespace

const Family kPrefillTiled{why_not_tiled, describe, tokens};

}  // namespace pamx::plan
