// The fused blocks as MLX primitives.
#include "cpu/block/attention_block.hpp"
#include "cpu/block/mlp_block.hpp"
#include "mlx/bridge.hpp"
#include "mlx/cpu_operation.hpp"
#include "mlx/memory.hpp"
#include "mlx/pool.hpp"
#include "mlx/rows.hpp"

namespace pamx {

namespace mx = mlx::core;

namespace {

using AttentionRef = std::shared_ptr<const cpu::AttentionBlock>;
using MlpRef = std::shared_ptr<const cpu::MlpBlock>;
using BatchRef = std::shared_ptr<const Batch>;

// An attention block and, if there is one, the MLP block that follows it.
class AttentionBlock : public PoolPrimitive {
 public:
  AttentionBlock(mx::Stream stream, AttentionRef block, MlpRef mlp, BatchRef batch, int32_t window,
                 int32_t partition)
      : PoolPrimitive(stream),
        block_(std::move(block)),
        mlp_(std::move(mlp)),
        batch_(std::move(batch)),
        window_(window),
        partition_(partition) {}

  void eval_cpu(const std::vector<mx::array>& in, std::vector<mx::array>& out) override {
    for (size_t i = 1; i < 3; ++i) hand_on(in[i], out[i]);
    out[0].set_data(allocate(out[0].nbytes()));
    cpu::AttentionBlockCall call;
    call.block = block_.get();
    call.batch = batch_.get();
    call.window = window_;
    call.partition = partition_;
    call.x = row_view(in[0]);
    mx::array hidden = out[0];  // between the blocks, in a buffer of its own if there are two
    if (mlp_) {
      hidden = mx::array(out[0].shape(), out[0].dtype(), nullptr, {});
      hidden.set_data(allocate(hidden.nbytes()));
    }
    call.out = hidden.data<char>();
    call.pool_dtype = cpu_dtype(out[1].dtype());
    call.key_pool = out[1].data<char>();
    call.value_pool = out[2].data<char>();
    auto& encoder = mx::cpu::get_command_encoder(stream());
    for (const auto& a : in) encoder.set_input_array(a);
    for (auto& a : out) encoder.set_output_array(a);
    if (!mlp_) {
      encoder.dispatch([call, block = block_, batch = batch_] { cpu::run(call); });
      return;
    }
    cpu::MlpBlockCall second;
    second.block = mlp_.get();
    second.x = row_view(hidden);
    second.out = out[0].data<char>();
    encoder.dispatch([call, second, hidden, block = block_, mlp = mlp_, batch = batch_] {
      cpu::run(call);
      cpu::run(second);
    });
  }

  const char* name() const override { return "PamxAttentionBlock"; }

 private:
  AttentionRef block_;
  MlpRef mlp_;
  BatchRef batch_;
  int32_t window_;
  int32_t partition_;
};

class MlpBlock : public CpuOperation {
 public:
  MlpBlock(mx::Stream stream, MlpRef block) : CpuOperation(stream), block_(std::move(block)) {}

  const char* name() const override { return "PamxMlpBlock"; }

 protected:
  void dispatch(mx::cpu::CommandEncoder& encoder, const std::vector<mx::array>& in,
                mx::array& out) override {
    cpu::MlpBlockCall call;
    call.block = block_.get();
    call.x = row_view(in[0]);
    call.out = out.data<char>();
    encoder.dispatch([call, block = block_] { cpu::run(call); });
  }

 private:
  MlpRef block_;
};

void check_block_pool(const mx::array& pool, const char* name, const Batch& batch, int32_t kv_heads,
                      int32_t dim) {
  check_pool(pool, name);
  const mx::Shape want{batch.num_blocks, batch.block_size, kv_heads, dim};
  require(pool.shape() == want, [&] {
    return std::string(name) + " has shape " + shape_string(pool.shape()) + " instead of " +
           shape_string(want);
  });
  require(served_dtype(pool.dtype()), [&] {
    return std::string(name) + " is " + dtype_string(pool.dtype()) +
           "; float32, float16 and bfloat16 are served";
  });
}

std::vector<mx::array> attention_block(const AttentionRef& block, const MlpRef& mlp,
                                       const BatchRef& batch, int32_t window, const mx::array& x,
                                       const mx::array& key_pool, const mx::array& value_pool) {
  check_rows_of(x, "x");
  const int32_t tokens = batch->num_tokens(), width = block->width();
  require(x.shape() == mx::Shape{1, tokens, width} || x.shape() == mx::Shape{tokens, 1, width},
          [&] {
            return "x has shape " + shape_string(x.shape()) + " instead of " +
                   shape_string({1, tokens, width}) + " or " + shape_string({tokens, 1, width});
          });
  require(!mlp || (mlp->inputs() == width && mlp->outputs() == width), [&] {
    return "the attention block gives rows of " + std::to_string(width) +
           " elements; the MLP block takes " + std::to_string(mlp->inputs()) + " and gives " +
           std::to_string(mlp->outputs());
  });
  require(window >= 0, "window must be at least 0");
  check_block_pool(key_pool, "key_pool", *batch, block->kv_heads, block->head_dim);
  check_block_pool(value_pool, "value_pool", *batch, block->kv_heads, block->v_dim);
  require(key_pool.dtype() == value_pool.dtype(), [&] {
    return "the pools are " + dtype_string(key_pool.dtype()) + " and " +
           dtype_string(value_pool.dtype());
  });
  const int32_t partition = cpu::queue(
      {block->heads, block->kv_heads, block->head_dim, block->v_dim, window}, batch->block_size);
  return mx::array::make_arrays(
      {x.shape(), key_pool.shape(), value_pool.shape()},
      {x.dtype(), key_pool.dtype(), value_pool.dtype()},
      std::make_shared<AttentionBlock>(cpu_stream(), block, mlp, batch, window, partition),
      {x, key_pool, value_pool});
}

mx::array mlp_block(const MlpRef& block, const mx::array& x) {
  check_rows_of(x, "x");
  require(x.shape(-1) == block->inputs(), [&] {
    return "x's rows have " + std::to_string(x.shape(-1)) + " elements instead of " +
           std::to_string(block->inputs());
  });
  mx::Shape shape = x.shape();
  shape.back() = block->outputs();
  return mx::array(shape, x.dtype(), std::make_shared<MlpBlock>(cpu_stream(), block), {x});
}

void apply(const pamx_attention_block* block, const MlpRef& mlp, const pamx_batch* batch,
           int32_t window, const pamx_object (&in)[3], const pamx_object (&out)[3]) {
  require(block && batch, "block and batch must not be null");
  fill({{out[0], "out"}, {out[1], "key_pool_out"}, {out[2], "value_pool_out"}}, [&] {
    return attention_block(block->block, mlp, batch->batch, window, array_of(in[0], "x"),
                           array_of(in[1], "key_pool"), array_of(in[2], "value_pool"));
  });
}

}  // namespace

}  // namespace pamx

extern "C" int pamx_attention_block_apply(const pamx_attention_block* block,
                                          const pamx_batch* batch, int32_t window, pamx_object x,
                                          pamx_object key_pool, pamx_object value_pool,
                                          pamx_object out, pamx_object key_pool_out,
                                          pamx_object value_pool_out) {
  return pamx::guarded([&] {
    pamx::apply(block, nullptr, batch, window, {x, key_pool, value_pool},
                {out, key_pool_out, value_pool_out});
  });
}

extern "C" int pamx_layer_apply(const pamx_attention_block* attention, const pamx_mlp_block* mlp,
                                const pamx_batch* batch, int32_t window, pamx_object x,
                                pamx_object key_pool, pamx_object value_pool, pamx_object out,
                                pamx_object key_pool_out, pamx_object value_pool_out) {
  return pamx::guarded([&] {
    pamx::require(mlp != nullptr, "the MLP block is null");
    pamx::apply(attention, mlp->block, batch, window, {x, key_pool, value_pool},
                {out, key_pool_out, value_pool_out});
  });
}

extern "C" int pamx_mlp_block_apply(const pamx_mlp_block* block, pamx_object x, pamx_object out) {
  return pamx::guarded([&] {
    using pamx::array_of;
    pamx::require(block != nullptr, "the block is null");
    auto& result = array_of(out, "out");
    result = pamx::mlp_block(block->block, array_of(x, "x"));
  });
}
