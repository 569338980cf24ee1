// What the kernels that work on tiles of query tokens have in common as dispatches.
#pragma once

#include "../../../shaders/params.h"
#include "plan/launch/family.hpp"

namespace pamx::plan {

// Head sizes that the tiled kernels are compiled for, with keys as long as values.
inline std::string why_not_tiled(const LaunchShape& shape) {
  if (std::string why = why_not_attention(shape); !why.empty()) return why;
  if (shape.k_dim != shape.v_dim) return "keys and values differ in size";
  switch (shape.k_dim) {
    case 64:
    case 80:
    case 96:
    case 128:
    case 192:
    case 256:
      break;
    default:
      return "head size " + std::to_string(shape.k_dim) + " is none of 64, 80, 96, 128, 192, 256";
  }
  if (shape.partition != 0) return "it does not split a sequence";
  return "";
}

// The dispatch of template `kernel`<T, P, arguments...> of shaders/`file`, with the constants that
// every attention kernel has.
inline Launch attention_launch(const LaunchShape& shape, const std::string& file,
                               const std::string& kernel, const std::string& name,
                               const std::string& arguments) {
  Launch launch;
  launch.source = file;
  launch.function =
      kernel + "_" + short_name(shape.dtype) + "_" + short_name(shape.pool_dtype) + "_" + name;
  launch.instantiation =
      instantiation_of(launch.function, kernel + "<" + metal_type(shape.dtype) + ", " +
                                            metal_type(shape.pool_dtype) + ", " + arguments + ">");
  launch.constant_mask = 1u << kHasWindow | 1u << kHasSoftcap | 1u << kHasSinks | 1u << kBlockSize;
  launch.has_window = shape.window;
  launch.has_softcap = shape.softcap;
  launch.has_sinks = shape.sinks;
  launch.block_size = static_cast<uint32_t>(shape.block_size);
  return launch;
}

}  // namespace pamx::plan
