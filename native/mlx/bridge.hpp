// From id() of a Python mlx.core.array to the C++ array inside it.
#pragma once

#include <initializer_list>
#include <utility>
#include <vector>

#include "core/status.hpp"
#include "mlx/array.h"

namespace pamx {

// The C++ array that a Python mlx.core.array holds. `name` goes into the error message.
mlx::core::array& array_of(pamx_object object, const char* name);

// A Python array that a call turns into a result.
struct Placeholder {
  pamx_object object;
  const char* name;
};

// Turns the placeholders into the arrays that `make` returns; into none if one of them is wrong.
template <class Make>
void fill(std::initializer_list<Placeholder> placeholders, const Make& make) {
  std::vector<mlx::core::array*> places;
  for (const Placeholder& p : placeholders) places.push_back(&array_of(p.object, p.name));
  std::vector<mlx::core::array> results = make();
  for (size_t i = 0; i < places.size(); ++i) *places[i] = std::move(results[i]);
}

}  // namespace pamx
