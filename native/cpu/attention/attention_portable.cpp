// The paged-attention kernel in plain C++, for every other processor.
#include "cpu/attention/attention.hpp"

namespace pamx::cpu::portable {
#include "cpu/isa/simd.hpp"
// simd.hpp first: the kernel is written in its terms.
#include "cpu/attention/kernel.hpp"

extern const Kernels kernels{write_rows, attend, fold_partials};
}  // namespace pamx::cpu::portable
