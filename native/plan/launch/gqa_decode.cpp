// Dispatches of shaders/gqa_decode.metal, in both of its forms.
#include <algorithm>
#include <array>

#include "../../../shaders/params.h"
#include "core/dtype.hpp"
#include "plan/launch/family.hpp"

namespace pamx::plan {

namespace {

constexpr std::array<int32_t, 6> kHeadDims{64, 80, 96, 128, 192, 256};

std::string why_not(const LaunchShape& shape) {
  if (auto why = why_not_attention(shape); !why.empty()) return why;
  if (shape.k_dim != shape.v_dim ||
      std::find(kHeadDims.begin(), kHeadDims.end(), shape.k_dim) == kHeadDims.end()) {
    return "there is no fast path for head sizes " + std::to_string(shape.k_dim) + " and " +
           std::to_string(shape.v_dim);
  }
  const int32_t group = shape.heads / shape.kv_heads;
  if (group > static_cast<int32_t>(limits::LARGEST_GQA_GROUP)) {
    return std::to_string(group) + " query heads share a KV head, more than " +
           std::to_string(limits::LARGEST_GQA_GROUP);
  }
  if (shape.partition <= 0 ||
      shape.partition % static_cast<int32_t>(limits::LARGEST_BLOCK_SIZE) != 0) {
    return "partitions of " + std::to_string(shape.partition) + " tokens are not a multiple of " +
           std::to_string(limits::LARGEST_BLOCK_SIZE);
  }
  if (shape.num_partitions <= 0) return "there are no partitions";
  return {};
}

// Tokens that a simdgroup of the group-sharing form takes at once: 16, or as many as leave a lane's
// outputs, and the keys and values that it waits for, 112 of the 128 registers beyond which an
// Apple GPU spills. Four tokens are the fewest that the widest layout of keys takes at once.
int32_t step_of(const LaunchShape& shape) {
  constexpr int32_t kLanes = 32, kRegisterBytes = 4, kMost = 112, kFewest = 4;
  const int32_t group = shape.heads / shape.kv_heads;
  const int32_t row_bytes = shape.k_dim * static_cast<int32_t>(size_of(shape.pool_dtype));
  const int32_t outputs = group * shape.k_dim / kLanes;
  int32_t step = 16;
  while (step > kFewest && outputs + 2 * step * row_bytes / (kLanes * kRegisterBytes) > kMost) {
    step /= 2;
  }
  return step;
}

// Simdgroups of a threadgroup of the group-sharing form. The planner takes large partitions when
// there is work enough: then many small threadgroups keep a core busy at less cost for merging.
// Small partitions mean few threadgroups, each of which should read more at once. That it follows
// from the partition alone keeps a row's bits independent of the others'.
int32_t simdgroups_of(const LaunchShape& shape) {
  return shape.partition >= static_cast<int32_t>(limits::PARTITION_SIZE) ? 2 : 4;
}

std::string types_of(const LaunchShape& shape) {
  return std::string(metal_type(shape.dtype)) + ", " + metal_type(shape.pool_dtype) + ", " +
         std::to_string(shape.k_dim);
}

std::string name_of(const char* kernel, const LaunchShape& shape) {
  return std::string(kernel) + "_" + short_name(shape.dtype) + "_" + short_name(shape.pool_dtype) +
         "_" + std::to_string(shape.k_dim);
}

Launch describe(const LaunchShape& shape) {
  const int32_t group = shape.heads / shape.kv_heads;
  const auto kv_heads = static_cast<uint32_t>(shape.kv_heads);
  Launch launch;
  launch.source = "gqa_decode.metal";
  launch.constant_mask = 1u << kHasWindow | 1u << kHasSoftcap;
  launch.has_window = shape.window;
  launch.has_softcap = shape.softcap;
  launch.grid = {kv_heads, static_cast<uint32_t>(shape.num_partitions),
                 static_cast<uint32_t>(shape.rows)};

  const std::string block = std::to_string(shape.block_size);
  std::string kernel = "gqa_decode_heads<" + types_of(shape) + ", " + block + ">";
  launch.function = name_of("gqa_decode_heads", shape) + "_b" + block;
  int32_t simdgroups = group;
  if (shape.kernel == Kernel::gqa_decode) {
    simdgroups = simdgroups_of(shape);
    kernel = "gqa_decode<" + types_of(shape) + ", " + std::to_string(group) + ", " + block + ", " +
             std::to_string(step_of(shape)) + ", " + std::to_string(simdgroups) + ">";
    launch.function = name_of("gqa_decode", shape) + "_g" + std::to_string(group) + "_b" + block +
                      "_s" + std::to_string(simdgroups);
  }
  launch.instantiation = instantiation_of(launch.function, kernel);
  launch.threadgroup = {limits::SIMD_WIDTH, static_cast<uint32_t>(simdgroups), 1};
  return launch;
}

}  // namespace

const Family kGqaDecode{why_not, describe, one_token};

}  // namespace pamx::plan
