// A family of kernels that one file of this folder describes.
#pragma once

#include "plan/launch/launch.hpp"

namespace pamx::plan {

struct Family {
  std::string (*turned_down)(const LaunchShape&);
  Launch (*launch)(const LaunchShape&);
  int32_t (*tokens_a_row)(const LaunchShape&);
};

inline int32_t one_token(const LaunchShape&) { return 1; }

// The type's name in the Metal shading language, and in host names.
const char* metal_type(Dtype dtype);
const char* short_name(Dtype dtype);

extern const Family kPagedAttention;  // paged_attention
extern const Family kGqaDecode;       // both forms of gqa_decode
extern const Family kSplitKvReduce;   // split_kv_reduce
extern const Family kPrefillTiled;    // prefill_tiled
extern const Family kPrefillNax;      // prefill_nax
extern const Family kMla;             // mla_decode and mla_prefill
extern const Family kPages;           // kv_write, copy_blocks and gather_blocks

}  // namespace pamx::plan
