// The paged-attention kernel in plain C++, for every other processor.
#include "cpu/paged_attention.hpp"

namespace pamx::cpu::portable {
#include "cpu/simd.hpp"
// simd.hpp first: the kernel is written in its terms.
#include "cpu/paged_attention_kernel.hpp"

extern const Kernels kernels{"portable", write_rows, attend_tile};
}  // namespace pamx::cpu::portable
