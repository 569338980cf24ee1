// All that a translated .metal file sees in run mode.
#pragma once
#pragma clang system_header

#include "run_mode.hpp"
//
#include "types.hpp"
//
#include "as_type.hpp"
#include "atomic.hpp"
#include "kernel.hpp"
#include "limits.hpp"
#include "math.hpp"
#include "packed.hpp"
#include "simd.hpp"
#include "simdgroup_matrix.hpp"
#include "vec.hpp"
