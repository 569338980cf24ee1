// What the operations on MLX arrays do on a GPU. Builds without Metal have these functions too, and
// they throw Error(PAMX_UNSUPPORTED).
#pragma once

#include <memory>
#include <vector>

#include "core/batch.hpp"
#include "mlx/array.h"
#include "mlx/stream.h"

namespace pamx::gpu {

namespace mx = mlx::core;

// Refuses a GPU stream that this build has no kernels for.
void check_stream(mx::Stream stream);

// An attention call of some geometry that is planned and whose kernels are compiled.
class Attention;

struct AttentionRequest {
  mx::Dtype dtype;
  mx::Dtype pool_dtype;
  int32_t heads, kv_heads, k_dim, v_dim;
  int32_t window;
  bool softcap;
  bool sinks;
  bool writes;

  bool operator==(const AttentionRequest&) const = default;
};

// Everything that can be refused is refused here, when the call is queued. Layers of one geometry
// share a step's plan.
std::shared_ptr<const Attention> prepare(mx::Stream stream, const Batch& batch,
                                         const AttentionRequest& request);

// The arrays of a call, their memory known. keys, values and sinks are null if there are none; the
// pools are those that are handed on.
struct AttentionArrays {
  float scale, softcap;
  const mx::array* queries;
  const mx::array* keys;
  const mx::array* values;
  const mx::array* sinks;
  mx::array* key_pool;
  mx::array* value_pool;
  mx::array* out;  // [batch, heads, length, v_dim], heads and length swapped in memory
};

// Encodes into MLX's command buffer of the stream and returns.
void run(mx::Stream stream, const Attention& attention, const AttentionArrays& arrays);

// Copies whole blocks of the pool, sources[i] to targets[i], in order, the same way.
void copy_blocks(mx::Stream stream, const std::vector<int32_t>& sources,
                 const std::vector<int32_t>& targets, mx::array& pool);

}  // namespace pamx::gpu
