// Dispatches of the kernels that move pages: kv_write, copy_blocks, gather_blocks.
#include "plan/launch/family.hpp"

namespace pamx::plan {

namespace {

std::string why_not(const LaunchShape&) { return "it is not written yet"; }

Launch describe(const LaunchShape&) { return {}; }

}  // namespace

const Family kPages{why_not, describe, one_token};

}  // namespace pamx::plan
