// The attention block: validating a description, and its steps over a slab of rows.
#include "cpu/block/attention_block.hpp"

#include <algorithm>
#include <cmath>

#include "core/attention_params.hpp"

namespace pamx::cpu {

namespace {

void check_head_size(int32_t size, const char* name) {
  require(size >= 8 && size <= 256 && size % 8 == 0,
          std::string(name) + " must be a multiple of 8 up to 256, not " + std::to_string(size));
}

// A norm of queries or keys: each head by itself, or the whole projection.
void check_head_norm(const BlockNorm& norm, const char* name, int32_t heads, int32_t head_dim) {
  require(!norm || norm.size == head_dim || norm.size == heads * head_dim,
          std::string(name) + " has size " + std::to_string(norm.size) + " instead of " +
              std::to_string(head_dim) + " or " + std::to_string(heads * head_dim));
}

}  // namespace

std::shared_ptr<const AttentionBlock> AttentionBlock::create(
    const pamx_attention_block_desc* desc) {
  require(desc != nullptr, "the block's description is null");
  auto block = std::make_shared<AttentionBlock>();
  AttentionBlock& b = *block;
  b.compute = check_compute(desc->compute);
  b.heads = desc->heads;
  b.kv_heads = desc->kv_heads;
  b.head_dim = desc->head_dim;
  b.v_dim = desc->v_dim;
  require(b.kv_heads >= 1 && b.kv_heads <= 4096 && b.heads >= 1 && b.heads <= 4096 &&
              b.heads % b.kv_heads == 0,
          std::to_string(b.heads) + " query heads are not a multiple of " +
              std::to_string(b.kv_heads) + " KV heads");
  check_head_size(b.head_dim, "head_dim");
  check_head_size(b.v_dim, "v_dim");

  require(desc->output != nullptr, "the output matrix is missing");
  const int32_t width = desc->output->matrix->format.outputs;
  const int32_t q = b.heads * b.head_dim, k = b.kv_heads * b.head_dim, v = b.kv_heads * b.v_dim;
  b.output = matrix_of(desc->output, "output", width, b.heads * b.v_dim);
  if (desc->fused_qkv) {
    require(!desc->query && !desc->key && !desc->value,
            "the projections are given both fused and one by one");
    b.projections = {matrix_of(desc->fused_qkv, "fused projection", q + k + v, width)};
  } else {
    b.projections = {matrix_of(desc->query, "query", q, width),
                     matrix_of(desc->key, "key", k, width),
                     matrix_of(desc->value, "value", v, width)};
  }

  b.input_norm = BlockNorm::create(desc->input_norm, "the input norm");
  check_size(b.input_norm, "the input norm", width);
  b.output_norm = BlockNorm::create(desc->output_norm, "the output norm");
  check_size(b.output_norm, "the output norm", width);
  b.query_norm = BlockNorm::create(desc->query_norm, "the query norm");
  check_head_norm(b.query_norm, "the query norm", b.heads, b.head_dim);
  b.key_norm = BlockNorm::create(desc->key_norm, "the key norm");
  check_head_norm(b.key_norm, "the key norm", b.kv_heads, b.head_dim);

  if (desc->rope) b.rope = desc->rope->rope;
  require(!b.rope || 2 * b.rope->pairs() <= b.head_dim,
          "the rope rotates " + std::to_string(b.rope ? 2 * b.rope->pairs() : 0) +
              " elements of heads of " + std::to_string(b.head_dim));
  require(std::isfinite(desc->residual_scale), "residual_scale is not finite");
  check_params(desc->attention);
  require(desc->attention.window == 0, "a block's window is given with each call");
  b.residual_scale = desc->residual_scale;
  b.scale = desc->attention.scale;
  b.softcap = desc->attention.softcap;
  if (desc->sinks) b.sinks.assign(desc->sinks, desc->sinks + b.heads);
  return block;
}

namespace {

std::vector<int32_t> positions_of(const Batch& batch) {
  std::vector<int32_t> positions;
  positions.reserve(static_cast<size_t>(batch.num_tokens()));
  for (int32_t s = 0; s < batch.num_sequences(); ++s) {
    for (int32_t i = batch.query_starts[s]; i < batch.query_starts[s + 1]; ++i) {
      positions.push_back(batch.context_lens[s] - (batch.query_starts[s + 1] - i));
    }
  }
  return positions;
}

// The part of a batch that a slab's rows are: sequences may begin before it and end after it.
struct SlabBatch {
  int32_t first_sequence = 0;
  std::vector<int32_t> query_starts{0};
  std::vector<int32_t> context_lens;

  SlabBatch(const Batch& batch, int64_t begin, int64_t end) {
    for (int32_t s = 0; s < batch.num_sequences(); ++s) {
      const int32_t first = batch.query_starts[s], last = batch.query_starts[s + 1];
      if (last <= begin) ++first_sequence;
      if (last <= begin || first >= end) continue;
      const auto to = static_cast<int32_t>(std::min<int64_t>(end, last));
      query_starts.push_back(static_cast<int32_t>(to - begin));
      context_lens.push_back(batch.context_lens[s] - (last - to));
    }
  }
};

// Normalises and rotates the queries and keys of each row, in place. `table` holds the rows'
// angles.
void prepare_heads(const AttentionBlock& b, const float* table, int64_t rows, float* qkv,
                   int64_t stride) {
  const struct {
    const BlockNorm& norm;
    int32_t heads;
    int64_t at;
  } parts[] = {{b.query_norm, b.heads, 0}, {b.key_norm, b.kv_heads, b.query_size()}};
  const int32_t pairs = table ? b.rope->pairs() : 0;
  for_rows(rows, b.query_size() + b.key_size(), [&](int64_t first, int64_t last) {
    for (int64_t r = first; r < last; ++r) {
      const float* angles = table ? table + r * 2 * pairs : nullptr;
      for (const auto& part : parts) {
        float* row = qkv + r * stride + part.at;
        const bool each = part.norm && part.norm.size == b.head_dim;
        if (part.norm && !each) part.norm.apply(row, row);
        for (int32_t h = 0; h < part.heads; ++h, row += b.head_dim) {
          if (each) part.norm.apply(row, row);
          if (angles) {
            row_kernels().rotate(row, angles, angles + pairs, pairs, b.rope->traditional());
          }
        }
      }
    }
  });
}

void run_slab(const AttentionBlockCall& call, int64_t begin, int64_t rows, const float* table,
              float* memory) {
  const AttentionBlock& b = *call.block;
  const int64_t width = b.width(), qkv_size = b.query_size() + b.key_size() + b.value_size();
  const int64_t attended_size = int64_t{b.heads} * b.v_dim;
  float* qkv = memory;
  float* attended = qkv + rows * qkv_size;
  float* normed = attended + rows * attended_size;
  float* x_buffer = normed + rows * width;
  const SlabBatch batch(*call.batch, begin, begin + rows);
  const SlabInput in = read_slab(call.x, begin, rows, b.input_norm, x_buffer, normed);

  Product products[3];
  const auto count = static_cast<int32_t>(b.projections.size());
  float* to = qkv;
  for (int32_t i = 0; i < count; ++i) {
    products[i].matrix = b.projections[static_cast<size_t>(i)].get();
    products[i].out = to;
    products[i].out_stride = qkv_size;
    to += products[i].matrix->format.outputs;
  }
  multiply(in.normed, in.normed_stride, static_cast<int32_t>(rows), b.compute, products, count);

  if (table || b.query_norm || b.key_norm) prepare_heads(b, table, rows, qkv, qkv_size);

  PagedAttention attention;
  attention.pool_dtype = call.pool_dtype;
  attention.heads = b.heads;
  attention.kv_heads = b.kv_heads;
  attention.k_dim = b.head_dim;
  attention.v_dim = b.v_dim;
  attention.scale = b.scale;
  attention.softcap = b.softcap;
  attention.window = call.window;
  attention.partition = call.partition;
  attention.sinks = b.sinks.empty() ? nullptr : b.sinks.data();
  attention.queries = {qkv, qkv_size, b.head_dim, 1};
  attention.keys = {qkv + b.query_size(), qkv_size, b.head_dim, 1};
  attention.values = {qkv + b.query_size() + b.key_size(), qkv_size, b.v_dim, 1};
  attention.out = {attended, attended_size, b.v_dim, 1};
  attention.key_pool = call.key_pool;
  attention.value_pool = call.value_pool;
  attention.num_sequences = static_cast<int32_t>(batch.context_lens.size());
  attention.block_size = call.batch->block_size;
  attention.max_blocks = call.batch->max_blocks;
  attention.query_starts = batch.query_starts.data();
  attention.context_lens = batch.context_lens.data();
  attention.block_tables =
      call.batch->block_tables.data() + int64_t{batch.first_sequence} * call.batch->max_blocks;
  run(attention);

  const BlockOutput output{b.output.get(), &b.output_norm, b.residual_scale,
                           b.compute,      call.x.dtype,   call.out};
  // What was normalised has been used: its place serves the output.
  write_slab(output, begin, rows, attended, attended_size, in.x, in.x_stride, normed);
}

}  // namespace

void run(const AttentionBlockCall& call) {
  const AttentionBlock& b = *call.block;
  const int64_t floats = b.query_size() + b.key_size() + b.value_size() +
                         int64_t{b.heads} * b.v_dim +
                         int64_t{b.width()} * (is_float_rows(call.x) ? 1 : 2);
  const int64_t tokens = call.batch->num_tokens(), step = std::min(tokens, slab_rows(floats));
  float* memory = scratch(step * floats);
  std::shared_ptr<const Rope::Table> table;  // of the whole batch: every layer's call finds it
  if (b.rope) {
    const auto positions = positions_of(*call.batch);
    table = b.rope->table(positions.data(), tokens);
  }
  for (int64_t begin = 0; begin < tokens; begin += step) {
    const float* angles = table ? table->rows.data() + begin * 2 * b.rope->pairs() : nullptr;
    run_slab(call, begin, std::min(step, tokens - begin), angles, memory);
  }
}

}  // namespace pamx::cpu

extern "C" int pamx_attention_block_create(const pamx_attention_block_desc* desc,
                                           pamx_attention_block** block) {
  return pamx::guarded([&] {
    pamx::require(block != nullptr, "the place for the new block is null");
    *block = nullptr;
    *block = new pamx_attention_block{pamx::cpu::AttentionBlock::create(desc)};
  });
}

extern "C" void pamx_attention_block_free(pamx_attention_block* block) { delete block; }
