// One dispatch of a shader, as data: what the Metal host encodes and the tests execute alike.
//
// Pure C++: which kernel specialisation, which function constants, which grid. Buffers are bound
// by the indices of shaders/params.h.
#pragma once

#include <array>
#include <cstdint>
#include <string>

namespace pamx::plan {

struct Launch {
  std::string source;    // file in shaders/ that holds the kernel, for example "gqa_decode.metal"
  std::string function;  // the specialisation's host name: unique over all of them
  // The explicit instantiation that makes it, for sources that are compiled at first use:
  // template [[host_name("...")]] [[kernel]] decltype(...) ...;
  std::string instantiation;

  // Function constants by index (shaders/params.h: FunctionConstant); those that the kernel does
  // not have are left out by `constant_mask`.
  uint32_t constant_mask = 0;
  bool has_window = false;
  bool has_softcap = false;
  bool has_sinks = false;
  uint32_t block_size = 0;

  std::array<uint32_t, 3> grid{1, 1, 1};         // threadgroups
  std::array<uint32_t, 3> threadgroup{1, 1, 1};  // threads
  uint32_t threadgroup_bytes = 0;  // dynamic threadgroup memory at index 0, a multiple of 16
};

}  // namespace pamx::plan
