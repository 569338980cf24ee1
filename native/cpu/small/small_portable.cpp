// The row kernels in plain C++, for every other processor.
#include "cpu/small/small.hpp"

namespace pamx::cpu::portable {
#include "cpu/isa/simd.hpp"
// simd.hpp first: the kernels are written in its terms.
#include "cpu/small/kernel.hpp"

extern const RowKernels row_kernels{to_float, from_float, rms_norm,  layer_norm,
                                    rotate,   gate,       add_scaled};
}  // namespace pamx::cpu::portable
