// The fused write-and-attend operation as an MLX primitive.
//
// Writing and attending are one primitive so that no read can pass a write in MLX's graph.
#include "core/attention_params.hpp"
#include "core/batch.hpp"
#include "cpu/attention/attention.hpp"
#include "mlx/backend/cpu/encoder.h"
#include "mlx/bridge.hpp"
#include "mlx/gpu.hpp"
#include "mlx/memory.hpp"
#include "mlx/ops.h"
#include "mlx/pool.hpp"
#include "mlx/rows.hpp"

namespace pamx {

namespace mx = mlx::core;

namespace {

cpu::Rows rows_of(const mx::array& a) {
  // [batch, heads, length, dim] with batch or length 1: the other one counts the tokens.
  const int token_axis = a.shape(0) > 1 ? 0 : 2;
  return {const_cast<char*>(a.data<char>()), a.strides(token_axis), a.strides(1), a.strides(3)};
}

class PagedAttention : public PoolPrimitive {
 public:
  // Where each input stands in the primitive's list; keys, values and sinks come only if used.
  enum Input { kQueries, kKeyPool, kValuePool, kRest };

  // partition: a CPU's. on_gpu: null on a CPU stream.
  PagedAttention(mx::Stream stream, std::shared_ptr<const Batch> batch,
                 pamx_attention_params params, int32_t partition, bool writes, bool has_sinks,
                 std::shared_ptr<const gpu::Attention> on_gpu)
      : PoolPrimitive(stream),
        batch_(std::move(batch)),
        params_(params),
        partition_(partition),
        writes_(writes),
        has_sinks_(has_sinks),
        on_gpu_(std::move(on_gpu)) {}

  void eval_gpu(const std::vector<mx::array>& in, std::vector<mx::array>& out) override {
    provide_outputs(in, out);
    gpu::AttentionArrays arrays;
    arrays.scale = params_.scale;
    arrays.softcap = params_.softcap;
    arrays.queries = &in[kQueries];
    arrays.keys = writes_ ? &in[kRest] : nullptr;
    arrays.values = writes_ ? &in[kRest + 1] : nullptr;
    arrays.sinks = has_sinks_ ? &in.back() : nullptr;
    arrays.key_pool = &out[1];
    arrays.value_pool = &out[2];
    arrays.out = &out[0];
    gpu::run(stream(), *on_gpu_, arrays);
  }

  void eval_cpu(const std::vector<mx::array>& in, std::vector<mx::array>& out) override {
    provide_outputs(in, out);
    const auto& queries = in[kQueries];
    cpu::PagedAttention call;
    call.dtype = cpu_dtype(queries.dtype());
    call.pool_dtype = cpu_dtype(in[kKeyPool].dtype());
    call.heads = queries.shape(1);
    call.kv_heads = in[kKeyPool].shape(2);
    call.k_dim = in[kKeyPool].shape(3);
    call.v_dim = in[kValuePool].shape(3);
    call.scale = params_.scale;
    call.softcap = params_.softcap;
    call.window = params_.window;
    call.partition = partition_;
    call.queries = rows_of(queries);
    if (writes_) {
      call.keys = rows_of(in[kRest]);
      call.values = rows_of(in[kRest + 1]);
    }
    call.out = rows_of(out[0]);
    call.key_pool = out[1].data<char>();
    call.value_pool = out[2].data<char>();
    if (has_sinks_) call.sinks = in.back().data<float>();
    call.num_sequences = batch_->num_sequences();
    call.block_size = batch_->block_size;
    call.max_blocks = batch_->max_blocks;
    call.query_starts = batch_->query_starts.data();
    call.context_lens = batch_->context_lens.data();
    call.block_tables = batch_->block_tables.data();

    auto& encoder = mx::cpu::get_command_encoder(stream());
    for (const auto& a : in) encoder.set_input_array(a);
    for (auto& a : out) encoder.set_output_array(a);
    encoder.dispatch([call, batch = batch_] { cpu::run(call); });
  }

  const char* name() const override { return "PamxPagedAttention"; }

 private:
  // Heads and length lie swapped in memory, as the output projection wants them.
  static void provide_outputs(const std::vector<mx::array>& in, std::vector<mx::array>& out) {
    for (int i = 0; i < 2; ++i) hand_on(in[kKeyPool + i], out[1 + i]);
    const int64_t heads = out[0].shape(1), length = out[0].shape(2), v_dim = out[0].shape(3);
    mx::array::Flags flags;
    flags.contiguous = true;
    flags.row_contiguous = length == 1 || heads == 1;
    flags.col_contiguous = out[0].size() == static_cast<size_t>(v_dim);
    out[0].set_data(allocate(out[0].nbytes()), out[0].size(),
                    {length * heads * v_dim, v_dim, heads * v_dim, 1}, flags);
  }

  std::shared_ptr<const Batch> batch_;
  pamx_attention_params params_;
  int32_t partition_;
  bool writes_;
  bool has_sinks_;
  std::shared_ptr<const gpu::Attention> on_gpu_;
};

void check_geometry(const mx::array& pool, const char* name, const Batch& batch) {
  check_pool(pool, name);
  require(pool.shape(0) == batch.num_blocks && pool.shape(1) == batch.block_size, [&] {
    return std::string(name) + " has shape " + shape_string(pool.shape()) + "; the batch needs [" +
           std::to_string(batch.num_blocks) + ", " + std::to_string(batch.block_size) +
           ", kv_heads, dim]";
  });
  const int dim = pool.shape(3);
  require(dim >= 8 && dim <= 512 && dim % 8 == 0, [&] {
    return std::string(name) + "'s head size must be a multiple of 8 up to 512, not " +
           std::to_string(dim);
  });
}

void check_rows(const mx::array& rows, const char* name, mx::Dtype dtype, const mx::Shape& want) {
  require(rows.dtype() == dtype, [&] {
    return std::string(name) + " is " + dtype_string(rows.dtype()) + ", the queries are " +
           dtype_string(dtype);
  });
  require(rows.shape() == want, [&] {
    return std::string(name) + " has shape " + shape_string(rows.shape()) + " instead of " +
           shape_string(want);
  });
}

std::vector<mx::array> paged_attention(const std::shared_ptr<const Batch>& batch,
                                       const pamx_attention_params& params,
                                       const mx::array& queries, const mx::array* keys,
                                       const mx::array* values, const mx::array& key_pool,
                                       const mx::array& value_pool, const mx::array* sinks) {
  const mx::Dtype dtype = queries.dtype();
  require(served_dtype(dtype), [&] {
    return "queries are " + dtype_string(dtype) + "; float32, float16 and bfloat16 are served";
  });
  require(queries.ndim() == 4 && (queries.shape(0) == 1 || queries.shape(2) == 1), [&] {
    return "queries have shape " + shape_string(queries.shape()) +
           " instead of [1, heads, tokens, dim] or [tokens, heads, 1, dim]";
  });
  require(static_cast<int64_t>(queries.shape(0)) * queries.shape(2) == batch->num_tokens(), [&] {
    return "queries hold " + std::to_string(int64_t{queries.shape(0)} * queries.shape(2)) +
           " tokens, the batch " + std::to_string(batch->num_tokens());
  });
  check_params(params);
  check_geometry(key_pool, "key_pool", *batch);
  check_geometry(value_pool, "value_pool", *batch);
  const mx::Dtype pool_dtype = key_pool.dtype();
  const bool rounds =
      dtype == mx::float32 && (pool_dtype == mx::float16 || pool_dtype == mx::bfloat16);
  require(value_pool.dtype() == pool_dtype && (pool_dtype == dtype || rounds), [&] {
    return "the pools are " + dtype_string(key_pool.dtype()) + " and " +
           dtype_string(value_pool.dtype()) + ", the queries are " + dtype_string(dtype);
  });
  const int kv_heads = key_pool.shape(2), k_dim = key_pool.shape(3), v_dim = value_pool.shape(3);
  require(value_pool.shape(2) == kv_heads && kv_heads >= 1, [&] {
    return "the pools have " + std::to_string(kv_heads) + " and " +
           std::to_string(value_pool.shape(2)) + " KV heads";
  });
  require(queries.shape(1) >= 1 && queries.shape(1) % kv_heads == 0, [&] {
    return std::to_string(queries.shape(1)) + " query heads are not a multiple of " +
           std::to_string(kv_heads) + " KV heads";
  });
  require(queries.shape(3) == k_dim, [&] {
    return "queries have head size " + std::to_string(queries.shape(3)) + ", key_pool " +
           std::to_string(k_dim);
  });
  require((keys == nullptr) == (values == nullptr), "keys and values come together or not at all");

  const auto stream = served_stream();
  std::vector<mx::array> inputs{queries, key_pool, value_pool};
  if (keys) {
    const int b = queries.shape(0), l = queries.shape(2);
    check_rows(*keys, "keys", dtype, {b, kv_heads, l, k_dim});
    check_rows(*values, "values", dtype, {b, kv_heads, l, v_dim});
    inputs.push_back(*keys);
    inputs.push_back(*values);
  }
  if (sinks) {
    require(mx::issubdtype(sinks->dtype(), mx::floating) &&
                sinks->shape() == mx::Shape{queries.shape(1)},
            [&] {
              return "sinks have shape " + shape_string(sinks->shape()) + " and dtype " +
                     dtype_string(sinks->dtype()) + " instead of one float for each of the " +
                     std::to_string(queries.shape(1)) + " heads";
            });
    inputs.push_back(mx::contiguous(mx::astype(*sinks, mx::float32, stream), false, stream));
  }
  int32_t partition = 0;
  std::shared_ptr<const gpu::Attention> on_gpu;
  if (stream.device == mx::Device::cpu) {
    partition =
        cpu::queue({queries.shape(1), kv_heads, k_dim, v_dim, params.window}, batch->block_size);
  } else {
    on_gpu = gpu::prepare(stream, *batch,
                          {dtype, pool_dtype, queries.shape(1), kv_heads, k_dim, v_dim,
                           params.window, params.softcap > 0, sinks != nullptr, keys != nullptr});
  }
  mx::Shape out_shape = queries.shape();
  out_shape[3] = v_dim;
  return mx::array::make_arrays(
      {out_shape, key_pool.shape(), value_pool.shape()}, {dtype, pool_dtype, pool_dtype},
      std::make_shared<PagedAttention>(stream, batch, params, partition, keys != nullptr,
                                       sinks != nullptr, std::move(on_gpu)),
      inputs);
}

}  // namespace

}  // namespace pamx

extern "C" int pamx_paged_attention(const pamx_batch* batch, const pamx_attention_params* params,
                                    pamx_object queries, pamx_object keys, pamx_object values,
                                    pamx_object key_pool, pamx_object value_pool, pamx_object sinks,
                                    pamx_object out, pamx_object key_pool_out,
                                    pamx_object value_pool_out) {
  return pamx::guarded([&] {
    using pamx::array_of;
    pamx::require(batch && params, "batch and params must not be null");
    pamx::fill(
        {{out, "out"}, {key_pool_out, "key_pool_out"}, {value_pool_out, "value_pool_out"}}, [&] {
          return pamx::paged_attention(
              batch->batch, *params, array_of(queries, "queries"),
              keys ? &array_of(keys, "keys") : nullptr,
              values ? &array_of(values, "values") : nullptr, array_of(key_pool, "key_pool"),
              array_of(value_pool, "value_pool"), sinks ? &array_of(sinks, "sinks") : nullptr);
        });
  });
}
