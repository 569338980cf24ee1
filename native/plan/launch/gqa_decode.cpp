// Dispatches of shaders/gqa_decode.metal, in both of its forms, and of gqa_decode_matrix.metal.
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

constexpr int32_t kMatrix = 8;  // query heads, tokens and columns of a matrix

// Whether the group-sharing form multiplies matrices: for groups that nearly fill one, in 16 bits
// throughout. Smaller groups take less work one element at a time.
bool takes_matrices(const LaunchShape& shape) {
  return shape.heads / shape.kv_heads >= kMatrix - 1 && shape.dtype == shape.pool_dtype &&
         size_of(shape.dtype) == 2;
}

// Tokens that a simdgroup of the group-sharing form takes at once: 16, or as many as leave a lane's
// outputs, and the keys and values that it waits for, 112 of the 128 registers beyond which an
// Apple GPU spills. With matrices it has outputs of as many heads as a matrix, and waits for keys
// or for values; it takes 8 tokens at least. Without, for both, and 4 tokens are the fewest that
// the widest layout of keys takes at once.
int32_t step_of(const LaunchShape& shape) {
  constexpr int32_t kLanes = 32, kRegisterBytes = 4, kMost = 112;
  const bool matrices = takes_matrices(shape);
  const int32_t heads = matrices ? kMatrix : shape.heads / shape.kv_heads;
  const int32_t rows = matrices ? 1 : 2;
  const int32_t fewest = matrices ? kMatrix : 4;
  const int32_t row_bytes = shape.k_dim * static_cast<int32_t>(size_of(shape.pool_dtype));
  const int32_t outputs = heads * shape.k_dim / kLanes;
  int32_t step = 16;
  while (step > fewest && outputs + rows * step * row_bytes / (kLanes * kRegisterBytes) > kMost) {
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

// Of rows and pools, once if they have one; and the head size.
std::string types_of(const LaunchShape& shape, bool one_type = false) {
  const std::string pools = std::string(metal_type(shape.pool_dtype)) + ", ";
  return (one_type ? "" : std::string(metal_type(shape.dtype)) + ", ") + pools +
         std::to_string(shape.k_dim);
}

std::string name_of(const std::string& kernel, const LaunchShape& shape) {
  return kernel + "_" + short_name(shape.dtype) + "_" + short_name(shape.pool_dtype) + "_" +
         std::to_string(shape.k_dim);
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
  int32_t simdgroups = group;
  std::string kernel, arguments, name;
  if (shape.kernel == Kernel::gqa_decode_heads) {
    kernel = "gqa_decode_heads";
    arguments = types_of(shape) + ", " + block;
    name = "_b" + block;
  } else {
    simdgroups = simdgroups_of(shape);
    const bool matrices = takes_matrices(shape);
    kernel = matrices ? "gqa_decode_matrix" : "gqa_decode";
    if (matrices) launch.source = "gqa_decode_matrix.metal";
    arguments = types_of(shape, matrices) + ", " + std::to_string(group) + ", " + block + ", " +
                std::to_string(step_of(shape)) + ", " + std::to_string(simdgroups);
    name = "_g" + std::to_string(group) + "_b" + block + "_s" + std::to_string(simdgroups);
  }
  launch.function = name_of(kernel, shape) + name;
  launch.instantiation = instantiation_of(launch.function, kernel + "<" + arguments + ">");
  launch.threadgroup = {limits::SIMD_WIDTH, static_cast<uint32_t>(simdgroups), 1};
  return launch;
}

}  // namespace

const Family kGqaDecode{why_not, describe, one_token};

}  // namespace pamx::plan
