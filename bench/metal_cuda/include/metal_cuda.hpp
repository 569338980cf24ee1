// All that a translated .metal file sees on CUDA: NVRTC, every function for the device.
//
// Types, vectors and functions are the software Metal's own headers; this folder has what differs
// from the CPU. A simdgroup is a warp.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "builtins.hpp"
//
#include "names.hpp"
//
#include "softmetal/types.hpp"
//
#include "softmetal/as_type.hpp"
#include "softmetal/limits.hpp"
#include "softmetal/math.hpp"
#include "softmetal/packed.hpp"
#include "softmetal/vec.hpp"
//
#include "matrix.hpp"
#include "simd.hpp"
//
#include "bindings.hpp"
