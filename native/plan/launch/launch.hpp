// One dispatch of a shader, as data: what the Metal host encodes and the tests execute alike.
//
// Pure C++, no device: which kernel specialisation, which function constants, which grid. Buffers
// are bound by the indices of shaders/params.h.
#pragma once

#include <array>
#include <cstdint>
#include <string>

#include "core/dtype.hpp"

namespace pamx::plan {

enum class Kernel : int32_t {
  paged_attention = 0,   // unified: one query token a work row, prefill and decode alike
  gqa_decode = 1,        // group-sharing form: a page is read once for all query heads of a group
  gqa_decode_heads = 2,  // one simdgroup a query head
  split_kv_reduce = 3,   // merges the partitions of any split kernel
  prefill_tiled = 4,
  prefill_nax = 5,
  mla_decode = 6,
  mla_prefill = 7,
  kv_write = 8,
  copy_blocks = 9,
  gather_blocks = 10,
};

// What a dispatch works on. Fields that a kernel has no use for are not read.
struct LaunchShape {
  Kernel kernel = Kernel::paged_attention;
  Dtype dtype = Dtype::float16;       // of queries, new rows and output
  Dtype pool_dtype = Dtype::float16;  // the same, or a 16-bit type below float32
  int32_t heads = 0;
  int32_t kv_heads = 0;
  int32_t k_dim = 0;  // MLA: latent and rotary parts together
  int32_t v_dim = 0;  // MLA: the latent part
  int32_t block_size = 0;
  int32_t partition = 0;       // tokens; 0: not split
  int32_t num_partitions = 0;  // of the longest row
  int32_t rows = 0;            // work rows
  int32_t tokens = 0;          // kv_write, gather_blocks: tokens; copy_blocks: pairs
  int32_t block_bytes = 0;     // copy_blocks: of a block; gather_blocks: of a token
  bool window = false;
  bool softcap = false;
  bool sinks = false;
};

struct Launch {
  std::string source;    // file in shaders/ that holds the kernel, for example "gqa_decode.metal"
  std::string function;  // the specialisation's host name: unique over all of them
  // The explicit instantiation that makes it, for sources that are compiled at first use:
  // template [[host_name("...")]] [[kernel]] decltype(...) ...;
  std::string instantiation;

  // Function constants: bit i says that the kernel has constant i (shaders/params.h:
  // FunctionConstant).
  uint32_t constant_mask = 0;
  bool has_window = false;
  bool has_softcap = false;
  bool has_sinks = false;
  uint32_t block_size = 0;

  std::array<uint32_t, 3> grid{1, 1, 1};         // threadgroups
  std::array<uint32_t, 3> threadgroup{1, 1, 1};  // threads
  uint32_t threadgroup_bytes = 0;  // dynamic threadgroup memory at index 0, a multiple of 16
};

// Why the kernel cannot serve this shape, in one clause; empty: it can.
std::string turned_down(const LaunchShape& shape);

// Throws Error(PAMX_UNSUPPORTED) with that clause.
Launch launch_of(const LaunchShape& shape);

// Tokens of a work row: how many query tokens of one sequence a row of this kernel takes (1 for
// decode and unified kernels).
int32_t tokens_a_row(const LaunchShape& shape);

}  // namespace pamx::plan
