// Dispatches of shaders/paged_attention.metal.
#include "../../../shaders/params.h"
#include "plan/launch/family.hpp"

namespace pamx::plan {

namespace {

std::string why_not(const LaunchShape& shape) {
  if (auto why = why_not_attention(shape); !why.empty()) return why;
  if (shape.partition < 0 || shape.partition % static_cast<int32_t>(limits::UNIFIED_TOKENS) != 0) {
    return "partitions of " + std::to_string(shape.partition) + " tokens are not a multiple of " +
           std::to_string(limits::UNIFIED_TOKENS);
  }
  if (shape.partition > 0 && shape.num_partitions <= 0) return "there are no partitions";
  return {};
}

Launch describe(const LaunchShape& shape) {
  const bool split = shape.partition > 0;
  const std::string kernel = split ? "paged_attention_split" : "paged_attention";
  const std::string dims = std::to_string(shape.k_dim) + ", " + std::to_string(shape.v_dim);
  Launch launch;
  launch.source = "paged_attention.metal";
  launch.function = kernel + "_" + short_name(shape.dtype) + "_" + short_name(shape.pool_dtype) +
                    "_" + std::to_string(shape.k_dim) + "_" + std::to_string(shape.v_dim);
  launch.instantiation =
      instantiation_of(launch.function, kernel + "<" + metal_type(shape.dtype) + ", " +
                                            metal_type(shape.pool_dtype) + ", " + dims + ">");
  launch.constant_mask = 1u << kHasWindow | 1u << kHasSoftcap | 1u << kBlockSize;
  if (!split) launch.constant_mask |= 1u << kHasSinks;
  launch.block_size = static_cast<uint32_t>(shape.block_size);
  launch.has_window = shape.window;
  launch.has_softcap = shape.softcap;
  launch.has_sinks = shape.sinks && !split;
  launch.grid = {static_cast<uint32_t>(shape.heads),
                 split ? static_cast<uint32_t>(shape.num_partitions) : 1u,
                 static_cast<uint32_t>(shape.rows)};
  launch.threadgroup = {limits::SIMD_WIDTH, limits::UNIFIED_SIMDGROUPS, 1};
  return launch;
}

}  // namespace

const Family kPagedAttention{why_not, describe, one_token};

}  // namespace pamx::plan
