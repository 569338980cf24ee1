// Rotary positions: the sines and cosines of a step, computed once and shared by all layers.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

namespace pamx::cpu {

// The angle of pair i at position p is (float)p * position_scale * inverse_frequencies[i], each
// product rounded to float32 as MLX does; its sine and cosine are taken in double precision.
class Rope {
 public:
  // One row for each position: `pairs` cosines, then `pairs` sines, times the multiplier.
  struct Table {
    std::vector<int32_t> positions;
    std::vector<float> rows;
  };

  // Ropes with the same parameters are one object, so that layers share a table whether or not
  // the caller knows that they could.
  static std::shared_ptr<const Rope> create(std::vector<float> inverse_frequencies,
                                            float position_scale, float multiplier,
                                            bool traditional);

  int32_t pairs() const { return static_cast<int32_t>(inverse_frequencies_.size()); }
  bool traditional() const { return traditional_; }

  // The table of these positions; the last one asked for is kept.
  std::shared_ptr<const Table> table(const int32_t* positions, int64_t count) const;

 private:
  Rope() = default;

  std::vector<float> inverse_frequencies_;
  float position_scale_ = 1.0f;
  float multiplier_ = 1.0f;
  bool traditional_ = false;
  mutable std::mutex mutex_;  // guards last_
  mutable std::shared_ptr<const Table> last_;
};

}  // namespace pamx::cpu

// The handle that C holds; operations that were queued keep their own share.
struct pamx_rope {
  std::shared_ptr<const pamx::cpu::Rope> rope;
};
