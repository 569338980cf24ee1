// MLX's command encoder as native/mlx/metal uses it, on the software device: takes the place of
// MLX's own header, whose encoder needs a Mac. Names and signatures are MLX's (0.32.4), which
// test_cross_compile.py holds native/mlx/metal to; the arrays are those of the real libmlx.
#pragma once

#include <cstdint>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "mlx/array.h"
#include "mlx/device.h"
#include "mlx/stream.h"

namespace pamx::metal {
class KernelEncoder;
}

namespace MTL {
class Device;
class ComputePipelineState;
struct Size {
  Size(uint64_t x, uint64_t y, uint64_t z) : width(x), height(y), depth(z) {}
  uint64_t width, height, depth;
};
}  // namespace MTL

namespace mlx::core::metal {

class CommandEncoder {
 public:
  void set_compute_pipeline_state(MTL::ComputePipelineState* kernel);
  void set_input_array(const array& a, int idx, int64_t offset = 0);
  void set_output_array(array& a, int idx, int64_t offset = 0);
  void register_output_array(const array& a);
  void set_bytes(const char* bytes, int size, int idx);
  void set_threadgroup_memory_length(size_t length, int idx);
  void add_temporary(array arr);
  void dispatch_threadgroups(MTL::Size grid, MTL::Size group);

  // ---- what the tests do with it ----

  // From here on, commands go to `plain`.
  void begin(pamx::metal::KernelEncoder& plain);
  // Throws if the primitive bound memory that MLX would not keep until the commands have run: that
  // of neither its inputs nor its outputs nor a temporary.
  void end_primitive(const std::vector<array>& inputs, const std::vector<array>& outputs);
  // The commands have run: arrays get what the device wrote.
  void finish();
  // Whether commands of a later encoder that write this array would wait for these.
  bool is_awaited(const array& a) const { return outputs_.count(a.buffer().ptr()) > 0; }
  int barriers() const { return barriers_; }

 private:
  using Buffers = std::unordered_set<const void*>;

  void* memory_of(const array& a);

  pamx::metal::KernelEncoder* plain_ = nullptr;
  std::unordered_map<const void*, void*> memory_;  // id<MTLBuffer>, retained
  std::vector<array> temporaries_, written_;
  Buffers bound_, outputs_;
  // Of the dispatches since the last barrier, and of the one being prepared.
  Buffers earlier_inputs_, earlier_outputs_, inputs_now_, outputs_now_;
  bool needs_barrier_ = false;
  int barriers_ = 0;
};

class Device {
 public:
  MTL::Device* mtl_device();
};

Device& device(mlx::core::Device);
CommandEncoder& get_command_encoder(Stream);

}  // namespace mlx::core::metal
