// Function constants of the attention kernels: what a specialisation can leave out.
#pragma once

#include <metal_stdlib>

#include "params.h"

constant bool has_window [[function_constant(pamx::kHasWindow)]];
constant bool has_softcap [[function_constant(pamx::kHasSoftcap)]];
constant bool has_sinks [[function_constant(pamx::kHasSinks)]];
constant uint tokens_a_block [[function_constant(pamx::kBlockSize)]];
