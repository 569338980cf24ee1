// The numbers of an attention layer, as C gives them.
#pragma once

#include <cmath>

#include "core/status.hpp"

namespace pamx {

// Refuses what no kernel could compute with.
inline void check_params(const pamx_attention_params& params) {
  require(std::isfinite(params.scale), "scale is not finite");
  require(std::isfinite(params.softcap) && params.softcap >= 0, "softcap must be at least 0");
  require(params.window >= 0, "window must be at least 0");
}

}  // namespace pamx
