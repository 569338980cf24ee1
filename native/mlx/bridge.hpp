// From id() of a Python mlx.core.array to the C++ array inside it.
#pragma once

#include "core/status.hpp"
#include "mlx/array.h"

namespace pamx {

// The C++ array that a Python mlx.core.array holds. `name` goes into the error message.
mlx::core::array& array_of(pamx_object object, const char* name);

}  // namespace pamx
