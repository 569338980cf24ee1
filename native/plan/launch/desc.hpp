// Shapes and dispatches as the C interface has them.
#pragma once

#include "core/status.hpp"
#include "plan/launch/launch.hpp"

namespace pamx::plan {

// Throws Error for a number that is no dtype.
LaunchShape shape_of(const pamx_launch_desc& desc);

pamx_launch_desc desc_of(const LaunchShape& shape);
// Strings stay those of `launch`.
void fill(const Launch& launch, int32_t tokens_a_row, pamx_launch* out);

}  // namespace pamx::plan
