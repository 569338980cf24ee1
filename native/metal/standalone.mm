// The C interface of Metal without MLX: buffers in, the plan's dispatches on our own queue.
#include <optional>

#include "core/attention_params.hpp"
#include "core/batch.hpp"
#include "core/dtype.hpp"
#include "core/slots.hpp"
#include "core/status.hpp"
#include "metal/attention.hpp"
#include "metal/buffer.hpp"
#include "metal/commands.hpp"
#include "metal/gpu.hpp"
#include "metal/pages.hpp"
#include "metal/scratch.hpp"
#include "plan/gpu_record.hpp"
#include "plan/step_limits.hpp"

namespace pamx::metal {

namespace {

// What stand-alone calls need besides the GPU. Made once, and like the GPU never released.
struct Standalone {
  Gpu& gpu = system_gpu();
  id<MTLDevice> device() const { return (__bridge id<MTLDevice>)gpu.device; }
  Commands commands{device()};
  Scratch scratch{Object<id<MTLDevice>>::share(device())};
};

Standalone& standalone() {
  static Standalone* const made = new Standalone;
  return *made;
}

Buffer whole(const pamx_metal_buffer* buffer) { return {buffer->buffer.handle(), 0}; }

void check_size(const pamx_metal_buffer* buffer, const char* name, uint64_t needed) {
  require(buffer != nullptr, std::string(name) + " is null");
  require(buffer->bytes() >= needed, std::string(name) + " has " + std::to_string(buffer->bytes()) +
                                         " bytes and needs " + std::to_string(needed));
}

// Bytes up to the last element of such rows; INT64_MAX if there are more.
int64_t end_of(const pamx_metal_rows& rows, int32_t tokens, int32_t heads, int32_t dim,
               int64_t size) {
  int64_t by_token = 0, by_head = 0, end = 0;
  const bool overflows =
      __builtin_mul_overflow(tokens - 1, rows.token_stride, &by_token) ||
      __builtin_mul_overflow(heads - 1, rows.head_stride, &by_head) ||
      __builtin_add_overflow(by_token, by_head, &end) || __builtin_add_overflow(end, dim, &end) ||
      __builtin_mul_overflow(end, size, &end) || __builtin_add_overflow(end, rows.offset, &end);
  return overflows ? INT64_MAX : end;
}

StridedRows rows_of(const pamx_metal_rows& rows, const char* name, int32_t tokens, int32_t heads,
                    int32_t dim, int64_t size) {
  require(rows.offset >= 0 && rows.token_stride >= 0 && rows.head_stride >= 0,
          std::string(name) + " has a negative offset or stride");
  require(rows.offset % size == 0, std::string(name) + " begins inside an element");
  const int64_t end = end_of(rows, tokens, heads, dim, size);
  check_size(rows.buffer, name, static_cast<uint64_t>(end));
  return {{rows.buffer->buffer.handle(), static_cast<uint64_t>(rows.offset)},
          static_cast<uint64_t>(rows.token_stride),
          static_cast<uint64_t>(rows.head_stride)};
}

void check_dim(int32_t dim, const char* name) {
  const auto step = static_cast<int32_t>(limits::HEAD_DIM_STEP);
  const auto most = static_cast<int32_t>(limits::LARGEST_HEAD_DIM);
  require(dim >= step && dim <= most && dim % step == 0,
          std::string(name) + " must be a multiple of " + std::to_string(step) + " up to " +
              std::to_string(most) + ", not " + std::to_string(dim));
}

AttentionCall call_of(const Batch& batch, const pamx_attention_params& params,
                      const pamx_metal_tensors& t) {
  plan::check_heads(t.heads, t.kv_heads, t.k_dim, t.v_dim);
  check_dim(t.k_dim, "k_dim");
  check_dim(t.v_dim, "v_dim");
  check_params(params);
  AttentionCall call;
  call.shape.geometry = {t.heads, t.kv_heads, t.k_dim, t.v_dim, params.window};
  call.shape.softcap = params.softcap > 0;
  call.shape.sinks = t.sinks != nullptr;
  call.shape.dtype = dtype_of(t.dtype, "dtype");
  call.shape.pool_dtype = dtype_of(t.pool_dtype, "pool_dtype");
  require(t.pool_dtype == t.dtype || t.dtype == PAMX_FLOAT32,
          "pools are of the rows' dtype, or of a 16-bit one below float32");
  call.shape.block_size = batch.block_size;
  call.tokens = batch.num_tokens();
  call.max_blocks = batch.max_blocks;
  call.scale = params.scale;
  call.softcap = params.softcap;
  const int64_t size = size_of(call.shape.dtype), pool_size = size_of(call.shape.pool_dtype);
  call.queries = rows_of(t.queries, "queries", call.tokens, t.heads, t.k_dim, size);
  require((t.keys.buffer == nullptr) == (t.values.buffer == nullptr),
          "keys and values come together or not at all");
  if (t.keys.buffer) {
    call.keys = rows_of(t.keys, "keys", call.tokens, t.kv_heads, t.k_dim, size);
    call.values = rows_of(t.values, "values", call.tokens, t.kv_heads, t.v_dim, size);
  }
  const uint64_t slots = uint64_t(batch.num_blocks) * uint64_t(batch.block_size);
  const uint64_t slot_heads = slots * uint64_t(t.kv_heads) * uint64_t(pool_size);
  check_size(t.key_pool, "key_pool", slot_heads * uint64_t(t.k_dim));
  check_size(t.value_pool, "value_pool", slot_heads * uint64_t(t.v_dim));
  check_size(t.out, "out", uint64_t(call.tokens) * uint64_t(t.heads) * uint64_t(t.v_dim * size));
  call.key_pool = whole(t.key_pool);
  call.value_pool = whole(t.value_pool);
  call.out = whole(t.out);
  if (t.sinks) {
    check_size(t.sinks, "sinks", uint64_t(t.heads) * sizeof(float));
    call.sinks = whole(t.sinks);
  }
  return call;
}

void attention(const Batch& batch, const pamx_attention_params& params,
               const pamx_metal_tensors& tensors, pamx_metal_report* report) {
  Standalone& own = standalone();
  AttentionCall call = call_of(batch, params, tensors);
  const plan::AttentionSequences sequences{batch.num_sequences(), batch.query_starts.data(),
                                           batch.context_lens.data()};
  const plan::Overrides overrides = plan::overrides();
  const ReadyPlan plan =
      ready(own.gpu.library, call.shape, call.tokens, tensors.keys.buffer != nullptr,
            plan::plan_gpu_attention(call.shape, sequences, own.gpu.machine, overrides));
  plan::record_queued(plan.plan);

  const auto shared = [&](const auto& host) {
    return shared_copy(own.device(), host.data(), host.size());
  };
  const auto block_tables = shared(batch.block_tables), context_lens = shared(batch.context_lens),
             query_starts = shared(batch.query_starts), slots = shared(slots_of(batch)),
             work_rows = shared(plan.work_rows());
  call.step = {{block_tables.handle()},
               {context_lens.handle()},
               {query_starts.handle()},
               {slots.handle()},
               {work_rows.handle()}};
  std::optional<Scratch::Lease> scratch;
  if (plan.plan.scratch_bytes) {
    scratch.emplace(own.scratch.take(static_cast<uint64_t>(plan.plan.scratch_bytes)));
    call.scratch = {scratch->handle()};
  }
  const double seconds =
      own.commands.run([&](KernelEncoder& encoder) { encode_attention(encoder, call, plan); });
  plan::count_run(plan.plan);
  if (report) {
    static thread_local std::string text;
    text = plan::explain_gpu_attention(call.shape, own.gpu.machine, overrides, plan.plan);
    *report = {seconds, text.c_str()};
  }
}

void copy_blocks(const pamx_metal_buffer* pool, int64_t block_bytes, const int32_t* sources,
                 const int32_t* targets, int32_t count) {
  require(sources && targets && count >= 1, "there are no blocks to copy");
  require(block_bytes >= 16 && block_bytes % 16 == 0 && block_bytes < int64_t{1} << 31,
          "block_bytes must be a multiple of 16 below 2 GiB, not " + std::to_string(block_bytes));
  check_size(pool, "pool", static_cast<uint64_t>(block_bytes));
  const auto blocks = static_cast<int64_t>(pool->bytes()) / block_bytes;
  std::vector<BlockCopy> copies;
  for (int32_t i = 0; i < count; ++i) {
    for (const int32_t id : {sources[i], targets[i]}) {
      require(id >= 0 && id < blocks, "block " + std::to_string(id) + " is not in the pool of " +
                                          std::to_string(blocks) + " blocks");
    }
    require(sources[i] != targets[i],
            "block " + std::to_string(sources[i]) + " would be copied to itself");
    copies.push_back({sources[i], targets[i]});
  }
  Standalone& own = standalone();
  own.commands.run([&](KernelEncoder& encoder) {
    encode_copies(encoder, own.gpu.library, whole(pool), static_cast<uint32_t>(block_bytes),
                  copies);
  });
}

void gather(const pamx_metal_buffer* pool, const int32_t* block_table, int32_t num_blocks,
            int32_t tokens, int32_t block_size, int32_t token_bytes, const pamx_metal_buffer* out) {
  require(block_table && tokens >= 1 && num_blocks >= 1, "there are no tokens to gather");
  require(block_size == 8 || block_size == 16 || block_size == 32,
          "block_size must be 8, 16 or 32, not " + std::to_string(block_size));
  require(token_bytes >= 16 && token_bytes % 16 == 0,
          "token_bytes must be a multiple of 16, not " + std::to_string(token_bytes));
  require(
      int64_t{num_blocks} * block_size >= tokens,
      std::to_string(num_blocks) + " blocks hold fewer than " + std::to_string(tokens) + " tokens");
  const int64_t block_bytes = int64_t{block_size} * token_bytes;
  check_size(pool, "pool", static_cast<uint64_t>(block_bytes));
  const auto blocks = static_cast<int64_t>(pool->bytes()) / block_bytes;
  for (int32_t i = 0; int64_t{i} * block_size < tokens; ++i) {
    require(block_table[i] >= 0 && block_table[i] < blocks,
            "block " + std::to_string(block_table[i]) + " is not in the pool of " +
                std::to_string(blocks) + " blocks");
  }
  check_size(out, "out", uint64_t(tokens) * uint64_t(token_bytes));
  Standalone& own = standalone();
  const auto table = shared_copy(own.device(), block_table, static_cast<size_t>(num_blocks));
  own.commands.run([&](KernelEncoder& encoder) {
    encode_gather(encoder, own.gpu.library, whole(pool), {table.handle()}, whole(out),
                  static_cast<uint32_t>(tokens), static_cast<uint32_t>(block_size),
                  static_cast<uint32_t>(token_bytes));
  });
}

plan::Launch launch_from(const pamx_launch& given) {
  require(given.source && given.function && given.instantiation,
          "source, function and instantiation must not be null");
  plan::Launch launch;
  launch.source = given.source;
  launch.function = given.function;
  launch.instantiation = given.instantiation;
  launch.constant_mask = given.constant_mask;
  launch.has_window = given.has_window != 0;
  launch.has_softcap = given.has_softcap != 0;
  launch.has_sinks = given.has_sinks != 0;
  launch.block_size = given.block_size;
  for (size_t i = 0; i < 3; ++i) {
    launch.grid[i] = given.grid[i];
    launch.threadgroup[i] = given.threadgroup[i];
  }
  launch.threadgroup_bytes = given.threadgroup_bytes;
  return launch;
}

void bind(KernelEncoder& encoder, const pamx_metal_binding& binding) {
  const auto index = static_cast<uint32_t>(binding.index);
  if (binding.buffer) {
    const auto offset = static_cast<uint64_t>(binding.offset);
    encoder.set_output(index, {binding.buffer->buffer.handle(), offset});
  } else {
    encoder.set_bytes(index, binding.bytes, static_cast<size_t>(binding.size));
  }
}

double run(const pamx_launch& given, const pamx_metal_binding* bindings, int32_t count) {
  for (int32_t i = 0; i < count; ++i) {
    const pamx_metal_binding& b = bindings[i];
    require(b.index >= 0 && b.index <= 30, "buffer indices are 0 to 30");
    if (b.buffer) {
      require(b.offset >= 0, "an offset is negative");
      check_size(b.buffer, "a bound buffer", static_cast<uint64_t>(b.offset) + 1);
    } else {
      require(b.bytes && b.size >= 1 && b.size <= 4096, "1 to 4,096 bytes can be bound");
    }
  }
  const plan::Launch launch = launch_from(given);
  for (size_t i = 0; i < 3; ++i) {
    require(launch.grid[i] >= 1 && launch.threadgroup[i] >= 1, "a grid or threadgroup is empty");
  }
  require(launch.threadgroup_bytes % 16 == 0, "threadgroup memory comes in multiples of 16 bytes");
  Standalone& own = standalone();
  const Pipeline pipeline = own.gpu.library.pipeline(launch);
  return own.commands.run([&](KernelEncoder& encoder) {
    encoder.set_pipeline(pipeline);
    for (int32_t i = 0; i < count; ++i) bind(encoder, bindings[i]);
    if (launch.threadgroup_bytes) encoder.set_threadgroup_memory(launch.threadgroup_bytes);
    encoder.dispatch(launch.grid, launch.threadgroup);
  });
}

template <class Body>
int entry(Body&& body) {
  @autoreleasepool {
    return guarded(body);
  }
}

}  // namespace

}  // namespace pamx::metal

using pamx::metal::entry;

extern "C" int32_t pamx_metal_built(void) { return 1; }

extern "C" int pamx_metal_configure(const char* shader_folder, const char* metallib) {
  return entry([&] {
    pamx::require(shader_folder && *shader_folder, "the shaders' folder is null or empty");
    pamx::metal::set_shader_files({shader_folder, metallib ? metallib : ""});
  });
}

extern "C" int pamx_metal_gpu(pamx_metal_facts* facts) {
  return entry([&] {
    pamx::require(facts != nullptr, "the place for the facts is null");
    const pamx::metal::GpuFacts& known = pamx::metal::system_gpu().facts;
    facts->name = known.name.c_str();
    facts->architecture = known.architecture.c_str();
    facts->os_version = known.os_version.c_str();
    facts->family = known.family;
    facts->cores = known.cores;
    facts->working_set_bytes = static_cast<int64_t>(known.working_set_bytes);
    facts->largest_buffer_bytes = static_cast<int64_t>(known.largest_buffer_bytes);
    facts->threadgroup_bytes = static_cast<int32_t>(known.threadgroup_bytes);
  });
}

extern "C" int pamx_metal_attention(const pamx_batch* batch, const pamx_attention_params* params,
                                    const pamx_metal_tensors* tensors, pamx_metal_report* report) {
  return entry([&] {
    pamx::require(batch && params && tensors, "batch, params and tensors must not be null");
    pamx::metal::attention(*batch->batch, *params, *tensors, report);
  });
}

extern "C" int pamx_metal_copy_blocks(const pamx_metal_buffer* pool, int64_t block_bytes,
                                      const int32_t* sources, const int32_t* targets,
                                      int32_t count) {
  return entry([&] { pamx::metal::copy_blocks(pool, block_bytes, sources, targets, count); });
}

extern "C" int pamx_metal_gather(const pamx_metal_buffer* pool, const int32_t* block_table,
                                 int32_t num_blocks, int32_t tokens, int32_t block_size,
                                 int32_t token_bytes, const pamx_metal_buffer* out) {
  return entry([&] {
    pamx::metal::gather(pool, block_table, num_blocks, tokens, block_size, token_bytes, out);
  });
}

extern "C" int pamx_metal_scratch_bytes(int64_t* bytes) {
  return entry([&] {
    pamx::require(bytes != nullptr, "the place for the number is null");
    *bytes = static_cast<int64_t>(pamx::metal::standalone().scratch.held_bytes());
  });
}

extern "C" int pamx_metal_run(const pamx_launch* launch, const pamx_metal_binding* bindings,
                              int32_t count, double* gpu_seconds) {
  return entry([&] {
    pamx::require(launch && (bindings || count == 0) && count >= 0,
                  "launch and bindings must not be null");
    const double seconds = pamx::metal::run(*launch, bindings, count);
    if (gpu_seconds) *gpu_seconds = seconds;
  });
}
