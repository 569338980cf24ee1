// Dispatches of shaders/split_kv_reduce.metal.
#include "../../../shaders/params.h"
#include "plan/launch/family.hpp"

namespace pamx::plan {

namespace {

std::string why_not(const LaunchShape& shape) {
  LaunchShape merged = shape;
  merged.k_dim = shape.v_dim;  // keys are behind it: latent attention's are longer than most
  if (auto why = why_not_attention(merged); !why.empty()) return why;
  if (shape.num_partitions <= 0) return "there are no partitions";
  if (shape.num_partitions > static_cast<int32_t>(limits::REDUCER_CAPACITY)) {
    return std::to_string(shape.num_partitions) + " partitions are more than the " +
           std::to_string(limits::REDUCER_CAPACITY) + " that a row's merge has room for";
  }
  return {};
}

Launch describe(const LaunchShape& shape) {
  // Few threadgroups wait for their own reads: each then reads more at once. The bits are the same.
  const bool few = int64_t{shape.heads} * shape.rows <= limits::REDUCER_FEW;
  const uint32_t threads = few ? 2 * limits::REDUCER_THREADS : limits::REDUCER_THREADS;
  const std::string dim = std::to_string(shape.v_dim), width = std::to_string(threads);
  Launch launch;
  launch.source = "split_kv_reduce.metal";
  launch.function =
      std::string("split_kv_reduce_") + short_name(shape.dtype) + "_" + dim + "_t" + width;
  launch.instantiation =
      instantiation_of(launch.function, std::string("split_kv_reduce<") + metal_type(shape.dtype) +
                                            ", " + dim + ", " + width + ">");
  launch.constant_mask = 1u << kHasSinks;
  launch.has_sinks = shape.sinks;
  launch.grid = {static_cast<uint32_t>(shape.heads), static_cast<uint32_t>(shape.rows), 1};
  launch.threadgroup = {threads, 1, 1};
  launch.threadgroup_bytes = (static_cast<uint32_t>(shape.num_partitions) * 4 + 15) / 16 * 16;
  return launch;
}

}  // namespace

const Family kSplitKvReduce{why_not, describe, one_token};

}  // namespace pamx::plan
