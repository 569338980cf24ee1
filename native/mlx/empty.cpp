// Arrays of untouched memory, for block pools.
#include "core/status.hpp"
#include "mlx/allocator.h"
#include "mlx/bridge.hpp"
#include "mlx/pool.hpp"

namespace mx = mlx::core;

extern "C" int pamx_empty(const int32_t* shape, int32_t ndim, pamx_object dtype_of,
                          pamx_object out) {
  return pamx::guarded([&] {
    pamx::require(shape != nullptr && ndim >= 1, "shape must not be null or empty");
    pamx::served_stream();  // memory that nobody has touched serves our own kernels alone
    const mx::Dtype dtype = pamx::array_of(dtype_of, "dtype_of").dtype();
    auto& out_array = pamx::array_of(out, "out");
    const mx::Shape dims(shape, shape + ndim);
    size_t bytes = mx::size_of(dtype);
    for (const int32_t dim : dims) {
      pamx::require(dim >= 1, "every dimension must be at least 1, not " + std::to_string(dim));
      pamx::require(!__builtin_mul_overflow(bytes, static_cast<size_t>(dim), &bytes),
                    "the array's size does not fit into memory");
    }
    out_array = mx::array(mx::allocator::malloc(bytes), dims, dtype);
  });
}
