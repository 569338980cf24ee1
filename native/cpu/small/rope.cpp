// Tables of sines and cosines.
#include "cpu/small/rope.hpp"

#include <algorithm>
#include <cmath>

#include "core/status.hpp"
#include "cpu/worker_pool.hpp"

namespace pamx::cpu {

namespace {

void check_rope(const float* inverse_frequencies, int32_t pairs, float position_scale,
                float multiplier) {
  require(inverse_frequencies != nullptr, "inverse_frequencies is null");
  require(pairs >= 1 && pairs <= 1 << 16,
          "a rope has from 1 to 65536 pairs, not " + std::to_string(pairs));
  require(std::isfinite(position_scale) && std::isfinite(multiplier),
          "position_scale and multiplier must be finite");
  for (int32_t i = 0; i < pairs; ++i) {
    require(std::isfinite(inverse_frequencies[i]),
            "inverse frequency " + std::to_string(i) + " is not finite");
  }
}

}  // namespace

std::shared_ptr<const Rope> Rope::create(std::vector<float> inverse_frequencies,
                                         float position_scale, float multiplier, bool traditional) {
  static std::mutex mutex;
  static auto& known = *new std::vector<std::weak_ptr<const Rope>>;
  std::lock_guard lock(mutex);
  std::erase_if(known, [](const auto& rope) { return rope.expired(); });
  for (const auto& weak : known) {
    auto rope = weak.lock();
    if (rope && rope->inverse_frequencies_ == inverse_frequencies &&
        rope->position_scale_ == position_scale && rope->multiplier_ == multiplier &&
        rope->traditional_ == traditional) {
      return rope;
    }
  }
  std::shared_ptr<Rope> rope(new Rope);
  rope->inverse_frequencies_ = std::move(inverse_frequencies);
  rope->position_scale_ = position_scale;
  rope->multiplier_ = multiplier;
  rope->traditional_ = traditional;
  known.push_back(rope);
  return rope;
}

std::shared_ptr<const Rope::Table> Rope::table(const int32_t* positions, int64_t count) const {
  {
    std::lock_guard lock(mutex_);
    if (last_ && std::equal(last_->positions.begin(), last_->positions.end(), positions,
                            positions + count)) {
      return last_;
    }
  }
  const auto n = static_cast<size_t>(pairs());
  auto table = std::make_shared<Table>();
  table->positions.assign(positions, positions + count);
  table->rows.resize(static_cast<size_t>(count) * 2 * n);
  const auto fill = [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) {
      const float position = static_cast<float>(positions[r]) * position_scale_;
      float* row = table->rows.data() + static_cast<size_t>(r) * 2 * n;
      for (size_t i = 0; i < n; ++i) {
        const double angle = static_cast<double>(position * inverse_frequencies_[i]);
        row[i] = static_cast<float>(std::cos(angle)) * multiplier_;
        row[n + i] = static_cast<float>(std::sin(angle)) * multiplier_;
      }
    }
  };
  // About 50 ns an angle: a part of 256 angles is worth handing out.
  const int64_t step = std::max<int64_t>(1, 256 / static_cast<int64_t>(n));
  const int64_t parts = (count + step - 1) / step;
  if (parts <= 1) {
    fill(0, count);
  } else {
    worker_pool()->run(
        parts, [&](int64_t i) { fill(i * step, std::min<int64_t>(count, (i + 1) * step)); });
  }
  std::lock_guard lock(mutex_);
  last_ = table;
  return table;
}

}  // namespace pamx::cpu

extern "C" int pamx_rope_create(const float* inverse_frequencies, int32_t pairs,
                                float position_scale, float multiplier, int32_t traditional,
                                pamx_rope** rope) {
  return pamx::guarded([&] {
    pamx::require(rope != nullptr, "the place for the new rope is null");
    *rope = nullptr;
    pamx::cpu::check_rope(inverse_frequencies, pairs, position_scale, multiplier);
    *rope =
        new pamx_rope{pamx::cpu::Rope::create({inverse_frequencies, inverse_frequencies + pairs},
                                              position_scale, multiplier, traditional != 0)};
  });
}

extern "C" void pamx_rope_free(pamx_rope* rope) { delete rope; }
