// Copying whole blocks inside a pool, in place: what copy-on-write needs before a step.
#include <cstring>

#include "mlx/backend/cpu/encoder.h"
#include "mlx/bridge.hpp"
#include "mlx/gpu.hpp"
#include "mlx/pool.hpp"

namespace pamx {

namespace mx = mlx::core;

namespace {

struct Copy {
  int32_t source;
  int32_t target;
};

class CopyBlocks : public PoolPrimitive {
 public:
  CopyBlocks(mx::Stream stream, std::vector<Copy> copies)
      : PoolPrimitive(stream), copies_(std::make_shared<const std::vector<Copy>>(copies)) {}

  void eval_cpu(const std::vector<mx::array>& in, std::vector<mx::array>& out) override {
    auto& encoder = mx::cpu::get_command_encoder(stream());
    for (size_t i = 0; i < in.size(); ++i) {
      hand_on(in[i], out[i]);
      encoder.set_input_array(in[i]);
      encoder.set_output_array(out[i]);
      const size_t block = out[i].nbytes() / static_cast<size_t>(out[i].shape(0));
      encoder.dispatch([pool = out[i].data<char>(), block, copies = copies_] {
        for (const Copy& copy : *copies) {
          std::memcpy(pool + static_cast<size_t>(copy.target) * block,
                      pool + static_cast<size_t>(copy.source) * block, block);
        }
      });
    }
  }

  void eval_gpu(const std::vector<mx::array>& in, std::vector<mx::array>& out) override {
    std::vector<int32_t> sources, targets;
    for (const Copy& copy : *copies_) {
      sources.push_back(copy.source);
      targets.push_back(copy.target);
    }
    for (size_t i = 0; i < in.size(); ++i) {
      hand_on(in[i], out[i]);
      gpu::copy_blocks(stream(), sources, targets, out[i]);
    }
  }

  const char* name() const override { return "PamxCopyBlocks"; }

 private:
  std::shared_ptr<const std::vector<Copy>> copies_;
};

std::vector<Copy> check_copies(const int32_t* sources, const int32_t* targets, int32_t count,
                               int32_t num_blocks) {
  require(sources && targets && count >= 1, "there are no blocks to copy");
  std::vector<Copy> copies;
  for (int32_t i = 0; i < count; ++i) {
    for (const int32_t id : {sources[i], targets[i]}) {
      require(id >= 0 && id < num_blocks, "block " + std::to_string(id) +
                                              " is not in the pool of blocks 0 to " +
                                              std::to_string(num_blocks - 1));
    }
    require(sources[i] != targets[i],
            "block " + std::to_string(sources[i]) + " would be copied to itself");
    copies.push_back({sources[i], targets[i]});
  }
  return copies;
}

std::vector<mx::array> copy_blocks(const int32_t* sources, const int32_t* targets, int32_t count,
                                   const mx::array& keys, const mx::array& values) {
  check_pool(keys, "key_pool");
  check_pool(values, "value_pool");
  require(keys.shape(0) == values.shape(0), "the pools have " + std::to_string(keys.shape(0)) +
                                                " and " + std::to_string(values.shape(0)) +
                                                " blocks");
  return mx::array::make_arrays(
      {keys.shape(), values.shape()}, {keys.dtype(), values.dtype()},
      std::make_shared<CopyBlocks>(served_stream(),
                                   check_copies(sources, targets, count, keys.shape(0))),
      {keys, values});
}

}  // namespace

}  // namespace pamx

extern "C" int pamx_copy_blocks(const int32_t* sources, const int32_t* targets, int32_t count,
                                pamx_object key_pool, pamx_object value_pool,
                                pamx_object key_pool_out, pamx_object value_pool_out) {
  return pamx::guarded([&] {
    using pamx::array_of;
    pamx::fill({{key_pool_out, "key_pool_out"}, {value_pool_out, "value_pool_out"}}, [&] {
      return pamx::copy_blocks(sources, targets, count, array_of(key_pool, "key_pool"),
                               array_of(value_pool, "value_pool"));
    });
  });
}
