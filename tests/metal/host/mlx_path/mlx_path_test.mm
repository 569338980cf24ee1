// native/mlx's GPU side, run: the operations on MLX arrays, encoded as on a Mac, against the
// stand-alone calls on the same numbers, bit for bit.
#include <cstring>
#include <functional>
#include <random>
#include <stdexcept>
#include <string>

#include "core/batch.hpp"
#include "cpu/attention/attention.hpp"
#include "metal/buffer.hpp"
#include "metal/commands.hpp"
#include "metal/gpu.hpp"
#include "mlx/allocator.h"
#include "mlx/backend/metal/device.h"
#include "mlx/ops.h"
#include "mlx/pool.hpp"
#include "mlx/primitives.h"
#include "mlx/transforms.h"

namespace mx = mlx::core;

#define CHECK(condition)                                                              \
  do {                                                                                \
    if (!(condition)) {                                                               \
      throw std::runtime_error("line " + std::to_string(__LINE__) + ": " #condition); \
    }                                                                                 \
  } while (0)

// Calls are queued on a GPU stream, which this MLX does not have; nothing of a CPU's runs.
mx::Stream wrapped_stream() __asm__("__wrap__ZN4pamx13served_streamEv");
mx::Stream wrapped_stream() { return mx::Stream(0, mx::Device::gpu); }
namespace pamx::cpu {
int32_t queue(const plan::AttentionGeometry&, int32_t) { throw std::runtime_error("on a CPU"); }
void run(const PagedAttention&) { throw std::runtime_error("on a CPU"); }
}  // namespace pamx::cpu

namespace {

constexpr int kHeads = 4, kKvHeads = 2, kDim = 64, kBlockSize = 16, kBlocks = 64;

// ---- arrays and C calls -------------------------------------------------------------------------

// An array inside an object, as native/mlx/bridge.cpp finds it.
struct Object {
  char header[16] = {};
  int32_t offset = 24;
  uint8_t flags = 2 | 4;
  mx::array array;

  explicit Object(mx::array a = mx::array(0)) : array(std::move(a)) {
    CHECK(reinterpret_cast<char*>(&array) - header == offset);
  }
  pamx_object id() const { return reinterpret_cast<pamx_object>(this); }
};

void must(int status) {
  if (status != PAMX_OK) throw std::runtime_error(pamx_last_error());
}

mx::array halves(mx::Shape shape, uint32_t seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  mx::array made(
      mx::allocator::malloc(2 * static_cast<size_t>(std::accumulate(
                                    shape.begin(), shape.end(), int64_t{1}, std::multiplies<>()))),
      shape, mx::float16);
  auto* data = made.data<_Float16>();
  for (size_t i = 0; i < made.size(); ++i) data[i] = static_cast<_Float16>(normal(random));
  return made;
}

std::string bytes_of(const mx::array& a) {
  return std::string(a.data<char>(), a.data_size() * a.itemsize());
}

// ---- a step -------------------------------------------------------------------------------------

struct Step {
  std::vector<int32_t> starts{0}, lens, tables;
  int32_t columns = 40;
  std::shared_ptr<pamx_batch> batch;

  // context and query tokens of each sequence, and its first block
  Step(std::initializer_list<std::array<int32_t, 3>> sequences) {
    for (const auto& [context, queries, block] : sequences) {
      starts.push_back(starts.back() + queries);
      lens.push_back(context);
      for (int32_t i = 0; i < columns; ++i) tables.push_back((block + i) % kBlocks);
    }
    const pamx_batch_desc desc{static_cast<int32_t>(lens.size()),
                               kBlocks,
                               kBlockSize,
                               columns,
                               starts.data(),
                               lens.data(),
                               tables.data()};
    pamx_batch* made = nullptr;
    must(pamx_batch_create(&desc, &made));
    batch.reset(made, pamx_batch_free);
  }
  int32_t tokens() const { return starts.back(); }
};

constexpr pamx_attention_params kParams{0.125f, 0.0f, 0};

// Rows of a step as models pass them: [tokens, heads, 1, dim], or [1, heads, tokens, dim] as a view
// of [1, tokens, heads, dim].
mx::array rows(const Step& step, int heads, bool one_batch, uint32_t seed) {
  const int tokens = step.tokens();
  if (!one_batch) return halves({tokens, heads, 1, kDim}, seed);
  auto view = mx::transpose(halves({1, tokens, heads, kDim}, seed), {0, 2, 1, 3}, mx::Device::cpu);
  mx::eval(view);
  return view;
}

struct Call {
  Object queries, keys, values, out, key_pool, value_pool;

  Call(const Step& step, const mx::array& pool_of_keys, const mx::array& pool_of_values,
       bool one_batch, bool writes = true)
      : queries(rows(step, kHeads, one_batch, 1)),
        keys(rows(step, kKvHeads, one_batch, 2)),
        values(rows(step, kKvHeads, one_batch, 3)) {
    const Object old_keys(pool_of_keys), old_values(pool_of_values);
    must(pamx_paged_attention(step.batch.get(), &kParams, queries.id(), writes ? keys.id() : 0,
                              writes ? values.id() : 0, old_keys.id(), old_values.id(), 0, out.id(),
                              key_pool.id(), value_pool.id()));
  }
};

// ---- evaluation, as MLX does it -----------------------------------------------------------------

pamx::metal::Commands& commands() {
  static pamx::metal::Commands made((__bridge id<MTLDevice>)pamx::metal::system_gpu().device);
  return made;
}

mx::metal::CommandEncoder& encoder() {
  return mx::metal::get_command_encoder(mx::Stream(0, mx::Device::gpu));
}

// The primitives of these arrays, in one encoder. After each, `seen` may look at it.
void evaluate(const std::vector<mx::array>& queued, const std::function<void()>& seen = [] {}) {
  commands().run([&](pamx::metal::KernelEncoder& plain) {
    encoder().begin(plain);
    for (const mx::array& array : queued) {
      auto outputs = array.outputs();
      array.primitive().eval_gpu(array.inputs(), outputs);
      for (const mx::array& out : outputs) out.set_status(mx::array::Status::evaluated);
      encoder().end_primitive(array.inputs(), outputs);
      seen();
    }
  });
  encoder().finish();
}

// ---- the stand-alone call, which other tests hold to float64
// --------------------------------------

struct Expected {
  std::string out, key_pool, value_pool;
};

Expected standalone(const Step& step, const Call& call, const std::string& key_pool,
                    const std::string& value_pool, bool writes = true) {
  std::vector<std::unique_ptr<pamx_metal_buffer, void (*)(pamx_metal_buffer*)>> kept;
  const auto buffer = [&](const void* data, size_t bytes) {
    pamx_metal_buffer* made = nullptr;
    must(pamx_metal_buffer_create(static_cast<int64_t>(bytes), &made));
    kept.emplace_back(made, pamx_metal_buffer_free);
    if (data) std::memcpy(pamx_metal_buffer_data(made), data, bytes);
    return made;
  };
  const auto rows_of = [&](const mx::array& a) {
    // As they lie: both layouts have a token's heads side by side.
    return pamx_metal_rows{buffer(a.data<char>(), a.nbytes()), 0, a.shape(1) * kDim, kDim};
  };
  pamx_metal_tensors tensors{};
  tensors.dtype = tensors.pool_dtype = PAMX_FLOAT16;
  tensors.heads = kHeads;
  tensors.kv_heads = kKvHeads;
  tensors.k_dim = tensors.v_dim = kDim;
  tensors.queries = rows_of(call.queries.array);
  if (writes) {
    tensors.keys = rows_of(call.keys.array);
    tensors.values = rows_of(call.values.array);
  }
  auto* const keys = buffer(key_pool.data(), key_pool.size());
  auto* const values = buffer(value_pool.data(), value_pool.size());
  const size_t out_bytes = static_cast<size_t>(step.tokens()) * kHeads * kDim * 2;
  auto* const out = buffer(nullptr, out_bytes);
  tensors.key_pool = keys;
  tensors.value_pool = values;
  tensors.out = out;
  must(pamx_metal_attention(step.batch.get(), &kParams, &tensors, nullptr));
  const auto text = [](pamx_metal_buffer* b) {
    return std::string(static_cast<char*>(pamx_metal_buffer_data(b)),
                       static_cast<size_t>(pamx_metal_buffer_bytes(b)));
  };
  return {text(out), text(keys), text(values)};
}

mx::array pool(uint32_t seed) { return halves({kBlocks, kBlockSize, kKvHeads, kDim}, seed); }

// Long enough to be split, so that there is scratch and a reducer; and a prompt.
const Step& mixed() {
  static const Step step{{600, 1, 0}, {33, 20, 40}, {20, 1, 44}};
  return step;
}

void check_equal(const Call& call, const Expected& expected) {
  CHECK(bytes_of(call.out.array) == expected.out);
  CHECK(bytes_of(call.key_pool.array) == expected.key_pool);
  CHECK(bytes_of(call.value_pool.array) == expected.value_pool);
}

// ---- tests --------------------------------------------------------------------------------------

void test_equals_the_standalone_call() {
  for (const bool one_batch : {false, true}) {
    const mx::array keys = pool(4), values = pool(5);
    const std::string keys_before = bytes_of(keys), values_before = bytes_of(values);
    const Call call(mixed(), keys, values, one_batch);
    evaluate({call.out.array});
    check_equal(call, standalone(mixed(), call, keys_before, values_before));
    CHECK(call.key_pool.array.buffer().ptr() == keys.buffer().ptr());
    const mx::array& out = call.out.array;
    CHECK(out.strides(1) == kDim && out.strides(one_batch ? 2 : 0) == kHeads * kDim);
  }
}

// Layers that share a cache attend without writing; so that what writes the pool later waits for
// them too, the pools count as theirs.
void test_readers_are_awaited() {
  for (const bool writes : {true, false}) {
    const mx::array keys = pool(4), values = pool(5);
    const std::string keys_before = bytes_of(keys), values_before = bytes_of(values);
    const Call call(mixed(), keys, values, true, writes);
    evaluate({call.out.array}, [&] {
      CHECK(encoder().is_awaited(keys) && encoder().is_awaited(values));
      CHECK(encoder().is_awaited(call.out.array));
    });
    check_equal(call, standalone(mixed(), call, keys_before, values_before, writes));
  }
}

// A step, a copy into a block that it read, and a step that reads the copy, in one encoder.
void test_steps_and_copies_see_each_other() {
  const Step first{{100, 1, 0}}, second{{100, 1, 30}};
  const mx::array keys = pool(4), values = pool(5);
  const std::string keys_before = bytes_of(keys), values_before = bytes_of(values);
  const Call before(first, keys, values, false);
  Object copied_keys, copied_values;
  const int32_t sources[] = {20, 30, 3}, targets[] = {2, 20, 32};
  must(pamx_copy_blocks(sources, targets, 3, before.key_pool.id(), before.value_pool.id(),
                        copied_keys.id(), copied_values.id()));
  const Call after(second, copied_keys.array, copied_values.array, false);
  evaluate({before.out.array, copied_keys.array, after.out.array});

  Expected expected = standalone(first, before, keys_before, values_before);
  CHECK(bytes_of(before.out.array) == expected.out);
  const size_t block = expected.key_pool.size() / kBlocks;
  for (std::string* p : {&expected.key_pool, &expected.value_pool}) {
    for (int i = 0; i < 3; ++i) {
      std::memcpy(p->data() + block * static_cast<size_t>(targets[i]),
                  p->data() + block * static_cast<size_t>(sources[i]), block);
    }
  }
  check_equal(after, standalone(second, after, expected.key_pool, expected.value_pool));
}

// Calls are queued by Python, which has no autorelease pool.
void test_queueing_leaves_nothing_to_an_autorelease_pool() {
  const mx::array keys = pool(4), values = pool(5);
  NSAutoreleasePool* pool = [[NSAutoreleasePool alloc] init];
  const unsigned before = [pool autoreleaseCount];
  const Step step{{33, 2, 0}};
  const Call call(step, keys, values, true);
  const unsigned after = [pool autoreleaseCount];
  [pool release];
  CHECK(after == before);
}

}  // namespace

// Null, or what was wrong with the test of this number; empty: there is none.
extern "C" __attribute__((visibility("default"))) const char* mlx_path_test(int number) {
  static void (*const tests[])() = {test_queueing_leaves_nothing_to_an_autorelease_pool,
                                    test_equals_the_standalone_call, test_readers_are_awaited,
                                    test_steps_and_copies_see_each_other};
  static std::string wrong;
  if (number < 0 || static_cast<size_t>(number) >= std::size(tests)) return "";
  try {
    must(pamx_bridge_configure(offsetof(Object, offset), sizeof(Object)));
    NSAutoreleasePool* pool = [[NSAutoreleasePool alloc] init];
    tests[number]();
    [pool release];
    return nullptr;
  } catch (const std::exception& error) {
    wrong = error.what();
    return wrong.c_str();
  }
}
