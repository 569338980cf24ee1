// Dispatches through the C interface.
#include "plan/launch/desc.hpp"

namespace pamx::plan {

LaunchShape shape_of(const pamx_launch_desc& desc) {
  LaunchShape shape;
  shape.kernel = static_cast<Kernel>(desc.kernel);
  shape.dtype = dtype_of(desc.dtype, "dtype");
  shape.pool_dtype = dtype_of(desc.pool_dtype, "pool_dtype");
  shape.heads = desc.heads;
  shape.kv_heads = desc.kv_heads;
  shape.k_dim = desc.k_dim;
  shape.v_dim = desc.v_dim;
  shape.block_size = desc.block_size;
  shape.partition = desc.partition;
  shape.num_partitions = desc.num_partitions;
  shape.rows = desc.rows;
  shape.tokens = desc.tokens;
  shape.block_bytes = desc.block_bytes;
  shape.window = desc.window != 0;
  shape.softcap = desc.softcap != 0;
  shape.sinks = desc.sinks != 0;
  return shape;
}

pamx_launch_desc desc_of(const LaunchShape& shape) {
  pamx_launch_desc desc;
  desc.kernel = static_cast<int32_t>(shape.kernel);
  desc.dtype = static_cast<int32_t>(shape.dtype);
  desc.pool_dtype = static_cast<int32_t>(shape.pool_dtype);
  desc.heads = shape.heads;
  desc.kv_heads = shape.kv_heads;
  desc.k_dim = shape.k_dim;
  desc.v_dim = shape.v_dim;
  desc.block_size = shape.block_size;
  desc.partition = shape.partition;
  desc.num_partitions = shape.num_partitions;
  desc.rows = shape.rows;
  desc.tokens = shape.tokens;
  desc.block_bytes = shape.block_bytes;
  desc.window = shape.window;
  desc.softcap = shape.softcap;
  desc.sinks = shape.sinks;
  return desc;
}

void fill(const Launch& launch, int32_t tokens_a_row, pamx_launch* out) {
  out->source = launch.source.c_str();
  out->function = launch.function.c_str();
  out->instantiation = launch.instantiation.c_str();
  out->constant_mask = launch.constant_mask;
  out->block_size = launch.block_size;
  out->has_window = launch.has_window;
  out->has_softcap = launch.has_softcap;
  out->has_sinks = launch.has_sinks;
  out->tokens_a_row = tokens_a_row;
  for (size_t i = 0; i < 3; ++i) {
    out->grid[i] = launch.grid[i];
    out->threadgroup[i] = launch.threadgroup[i];
  }
  out->threadgroup_bytes = launch.threadgroup_bytes;
}

}  // namespace pamx::plan

extern "C" int pamx_metal_launch(const pamx_launch_desc* desc, pamx_launch* launch) {
  return pamx::guarded([&] {
    pamx::require(desc && launch, "desc and launch must not be null");
    const auto shape = pamx::plan::shape_of(*desc);
    static thread_local pamx::plan::Launch made;
    made = pamx::plan::launch_of(shape);
    pamx::plan::fill(made, pamx::plan::tokens_a_row(shape), launch);
  });
}
