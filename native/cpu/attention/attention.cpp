// Choosing the kernels for this processor, and sharing a call out over the worker pool.
#include "cpu/attention/attention.hpp"

#include <vector>

#include "cpu/isa/isa.hpp"
#include "cpu/worker_pool.hpp"

namespace pamx::cpu {

const Kernels& kernels() {
#if defined(__x86_64__)
  if (isa() >= Isa::avx2) return avx2::kernels;
#endif
  return portable::kernels;
}

void run(const PagedAttention& call) {
  const Kernels& k = kernels();
  k.write_rows(call);
  const int32_t step = tile_tokens(call.heads / call.kv_heads);
  std::vector<Tile> tiles;
  for (int32_t s = 0; s < call.num_sequences; ++s) {
    const int32_t queries = call.query_starts[s + 1] - call.query_starts[s];
    // The last tiles of a prompt see the most keys: handing them out first evens the ends.
    for (int32_t begin = (queries - 1) / step * step; begin >= 0; begin -= step) {
      const int32_t end = begin + step < queries ? begin + step : queries;
      for (int32_t h = 0; h < call.kv_heads; ++h) tiles.push_back({s, h, begin, end});
    }
  }
  const auto floats = static_cast<size_t>(scratch_floats(call));
  worker_pool()->run(static_cast<int64_t>(tiles.size()), [&](int64_t i) {
    static thread_local std::vector<float> scratch;
    if (scratch.size() < floats) scratch.resize(floats);
    k.attend_tile(call, tiles[static_cast<size_t>(i)], scratch.data());
  });
}

}  // namespace pamx::cpu
