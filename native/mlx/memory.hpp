// Memory for results.
#pragma once

#include <string>
#include <utility>

#include "core/status.hpp"
#include "mlx/allocator.h"

namespace pamx {

// MLX's allocator answers with null where the system has no more; here that is an Error.
inline mlx::core::allocator::Data allocate(size_t bytes) {
  auto memory = mlx::core::allocator::malloc(bytes);
  if (bytes > 0 && memory.buffer().ptr() == nullptr) {
    throw Error(PAMX_FAILED, "there is no memory for " + std::to_string(bytes) + " bytes");
  }
  return memory;
}

}  // namespace pamx
