// Dispatches of the kernels that move pages: kv_write, copy_blocks, gather_blocks.
#include "../../../shaders/params.h"
#include "plan/launch/family.hpp"

namespace pamx::plan {

namespace {

constexpr int32_t kWord = static_cast<int32_t>(limits::COPY_BYTES);
constexpr int32_t kStep = static_cast<int32_t>(limits::HEAD_DIM_STEP);

// Of eight elements: what a thread of kv_write moves.
int64_t units_of(const LaunchShape& shape) {
  return int64_t{shape.kv_heads} * ((int64_t{shape.k_dim} + shape.v_dim) / kStep);
}
constexpr int64_t kMostUnits = int64_t{1} << 28;  // their elements have 32-bit numbers

std::string why_not(const LaunchShape& shape) {
  if (shape.tokens <= 0) return "there is nothing to move";
  if (shape.kernel != Kernel::kv_write) {
    if (shape.block_bytes > 0 && shape.block_bytes % kWord == 0) return {};
    return std::to_string(shape.block_bytes) + " bytes are not a multiple of " +
           std::to_string(kWord);
  }
  if (!stores(shape.pool_dtype, shape.dtype)) {
    return std::string(short_name(shape.pool_dtype)) + " pools do not go with " +
           short_name(shape.dtype) + " rows";
  }
  if (shape.kv_heads <= 0) return "there are no KV heads";
  if (shape.k_dim <= 0 || shape.v_dim <= 0 || shape.k_dim % kStep || shape.v_dim % kStep) {
    return "head dims " + std::to_string(shape.k_dim) + " and " + std::to_string(shape.v_dim) +
           " are not multiples of " + std::to_string(kStep);
  }
  if (units_of(shape) > kMostUnits) {
    return std::to_string(shape.kv_heads) + " KV heads of " + std::to_string(shape.k_dim) +
           " and " + std::to_string(shape.v_dim) + " elements are more than a grid is wide";
  }
  return {};
}

// A grid of `width` by `height` threads; threadgroups as wide as the width, if that is not much.
void cover(Launch& launch, uint32_t width, uint32_t height) {
  uint32_t x = limits::SIMD_WIDTH;
  while (x < width && x < limits::PAGES_THREADS) x *= 2;
  const uint32_t y = limits::PAGES_THREADS / x;
  launch.threadgroup = {x, y, 1};
  launch.grid = {(width + x - 1) / x, (height + y - 1) / y, 1};
}

Launch describe(const LaunchShape& shape) {
  Launch launch;
  const auto rows = static_cast<uint32_t>(shape.tokens);
  if (shape.kernel == Kernel::kv_write) {
    launch.source = "kv_write.metal";
    launch.function =
        std::string("kv_write_") + short_name(shape.dtype) + "_" + short_name(shape.pool_dtype);
    launch.instantiation =
        instantiation_of(launch.function, std::string("kv_write<") + metal_type(shape.dtype) +
                                              ", " + metal_type(shape.pool_dtype) + ">");
    cover(launch, static_cast<uint32_t>(units_of(shape)), rows);
    return launch;
  }
  const auto words = static_cast<uint32_t>(shape.block_bytes / kWord);
  // These are no templates: they move bytes.
  if (shape.kernel == Kernel::copy_blocks) {
    launch.source = "copy_blocks.metal";
    launch.function = "copy_blocks";
    launch.grid = {(words + limits::PAGES_THREADS - 1) / limits::PAGES_THREADS, rows, 1};
    launch.threadgroup = {limits::PAGES_THREADS, 1, 1};
  } else {
    launch.source = "gather_blocks.metal";
    launch.function = "gather_blocks";
    cover(launch, words, rows);
  }
  return launch;
}

}  // namespace

const Family kPages{why_not, describe, one_token};

}  // namespace pamx::plan
