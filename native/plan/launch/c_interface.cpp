// Dispatches through the C interface.
#include "core/status.hpp"
#include "plan/launch/launch.hpp"

namespace pamx::plan {

namespace {

Dtype dtype_of(int32_t number, const char* name) {
  require(number >= PAMX_FLOAT32 && number <= PAMX_BFLOAT16,
          std::string(name) + " " + std::to_string(number) + " is none of pamx_dtype");
  return static_cast<Dtype>(number);
}

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

}  // namespace

}  // namespace pamx::plan

extern "C" int pamx_metal_launch(const pamx_launch_desc* desc, pamx_launch* launch) {
  return pamx::guarded([&] {
    pamx::require(desc && launch, "desc and launch must not be null");
    const auto shape = pamx::plan::shape_of(*desc);
    static thread_local pamx::plan::Launch made;
    made = pamx::plan::launch_of(shape);
    launch->source = made.source.c_str();
    launch->function = made.function.c_str();
    launch->instantiation = made.instantiation.c_str();
    launch->constant_mask = made.constant_mask;
    launch->block_size = made.block_size;
    launch->has_window = made.has_window;
    launch->has_softcap = made.has_softcap;
    launch->has_sinks = made.has_sinks;
    launch->tokens_a_row = pamx::plan::tokens_a_row(shape);
    for (int i = 0; i < 3; ++i) {
      launch->grid[i] = made.grid[i];
      launch->threadgroup[i] = made.threadgroup[i];
    }
    launch->threadgroup_bytes = made.threadgroup_bytes;
  });
}
