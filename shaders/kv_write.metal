// Writes a step's new keys and values into their slots of the pools.
//
//   grid         (units, tokens) by threadgroups of (x, PAGES_THREADS / x): a unit is eight
//                elements of a token, its keys first, then its values
//   buffers      KvWriteBuffer of params.h
//
// A thread moves one unit: 16 bytes to a 16-bit pool. Float rows are rounded to nearest even for
// such a pool; rows of the pool's own type arrive bit for bit. A token whose slot is negative is
// padding and is skipped.
#include "params.h"
#include "types.h"

using namespace metal;
using namespace pamx;

// One unit from a row of any alignment to a place that is a multiple of 16 bytes.
template <typename T, typename P>
inline void write8(const device T* from, device P* to, bool aligned) {
  if (aligned) {
    store8(to, load8(from));
  } else {
    store8(to, load8_unaligned(from));
  }
}

// Rows of the pool's own type are moved as bits: a NaN keeps its payload.
inline void write8(const device half* from, device half* to, bool aligned) {
  if (aligned) {
    *(device uint4*)to = *(const device uint4*)from;
  } else {
    for (int i = 0; i < 8; ++i) ((device ushort*)to)[i] = ((const device ushort*)from)[i];
  }
}

#if __METAL_VERSION__ >= 310
inline void write8(const device bfloat* from, device bfloat* to, bool aligned) {
  write8((const device half*)from, (device half*)to, aligned);
}
#endif

template <typename T>
inline bool all_aligned(const device T* rows, ulong token_stride, ulong head_stride) {
  return ((ulong(rows) | token_stride * sizeof(T) | head_stride * sizeof(T)) &
          (limits::COPY_BYTES - 1)) == 0;
}

template <typename T, typename P>
[[kernel]] void kv_write(const device T* keys [[buffer(kNewKeys)]],
                         const device T* values [[buffer(kNewValues)]],
                         device P* key_pool [[buffer(kWriteKeyPool)]],
                         device P* value_pool [[buffer(kWriteValuePool)]],
                         const device long* slots [[buffer(kSlotMapping)]],
                         constant KvWriteParams& params [[buffer(kWriteParams)]],
                         uint3 place [[thread_position_in_grid]]) {
  const uint key_units = params.kv_heads * (params.k_dim / 8);
  const uint units = key_units + params.kv_heads * (params.v_dim / 8);
  const uint token = place.y;
  if (place.x >= units || token >= params.tokens) return;
  const long slot = slots[token];
  if (slot < 0) return;
  if (place.x < key_units) {
    const uint head = place.x / (params.k_dim / 8), unit = place.x % (params.k_dim / 8);
    write8(keys + token * params.key_token_stride + head * params.key_head_stride + unit * 8,
           key_pool + ulong(slot) * key_units * 8 + place.x * 8,
           all_aligned(keys, params.key_token_stride, params.key_head_stride));
  } else {
    const uint place_x = place.x - key_units;
    const uint head = place_x / (params.v_dim / 8), unit = place_x % (params.v_dim / 8);
    write8(values + token * params.value_token_stride + head * params.value_head_stride + unit * 8,
           value_pool + (ulong(slot) * params.kv_heads * params.v_dim + place_x * 8),
           all_aligned(values, params.value_token_stride, params.value_head_stride));
  }
}
