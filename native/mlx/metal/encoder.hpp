// KernelEncoder on MLX's own command encoder, so that our kernels queue up behind MLX's.
#pragma once

#include "metal/encoder.hpp"
#include "mlx/backend/metal/device.h"
#include "mlx/stream.h"

namespace pamx::gpu {

// A Buffer's object is an mlx::core::array. Whoever encodes keeps arrays that are not the
// primitive's own alive with add_temporary.
class MlxEncoder : public metal::KernelEncoder {
 public:
  explicit MlxEncoder(mlx::core::Stream stream);

  void add_temporary(const mlx::core::array& array) { encoder_.add_temporary(array); }
  // What later commands do with the array waits for those encoded so far, as if they wrote it.
  void count_as_written(const mlx::core::array& array) { encoder_.register_output_array(array); }

  void set_pipeline(const metal::Pipeline& pipeline) override;
  void set_input(uint32_t index, const metal::Buffer& buffer) override;
  void set_output(uint32_t index, const metal::Buffer& buffer) override;
  void set_bytes(uint32_t index, const void* bytes, size_t size) override;
  void set_threadgroup_memory(uint32_t bytes) override;
  void dispatch(const std::array<uint32_t, 3>& grid,
                const std::array<uint32_t, 3>& threadgroup) override;
  void barrier() override;

 private:
  mlx::core::metal::CommandEncoder& encoder_;
};

}  // namespace pamx::gpu
