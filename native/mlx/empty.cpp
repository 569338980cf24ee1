// Arrays of untouched memory, for block pools.
#include <sys/mman.h>

#include "core/status.hpp"
#include "mlx/bridge.hpp"
#include "mlx/memory.hpp"
#include "mlx/pool.hpp"

namespace mx = mlx::core;

namespace {

// Attention reads a pool page by page in an order of its own, and the processor's table of page
// addresses holds few small ones. Pools that lie side by side share huge pages.
#if defined(MADV_HUGEPAGE)
void advise_huge_pages(char* data, size_t bytes) {
  constexpr uintptr_t kPage = 4096;
  constexpr size_t kHugePage = 2 << 20;
  if (bytes < kHugePage) return;
  const uintptr_t begin = (reinterpret_cast<uintptr_t>(data) + kPage - 1) / kPage * kPage;
  const uintptr_t end = (reinterpret_cast<uintptr_t>(data) + bytes) / kPage * kPage;
  madvise(reinterpret_cast<void*>(begin), end - begin, MADV_HUGEPAGE);  // refusal costs only speed
}
#else
void advise_huge_pages(char*, size_t) {}
#endif

}  // namespace

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
    out_array = mx::array(pamx::allocate(bytes), dims, dtype);
    advise_huge_pages(out_array.data<char>(), bytes);
  });
}
