// Activations of gated MLPs.
#pragma once

#include <cstdint>

namespace pamx::cpu {

enum class Gate : int32_t { silu, gelu, gelu_tanh, relu };

}  // namespace pamx::cpu
