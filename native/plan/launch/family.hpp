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

// Why no attention kernel can serve the shape's heads, dims, pages and types; empty: one might.
std::string why_not_attention(const LaunchShape& shape);

// Whether pools of this type may lie below rows of the other: the same, or 16 bits below float32.
bool stores(Dtype pool_dtype, Dtype dtype);

// template [[host_name("<name>")]] [[kernel]] decltype(<kernel>) <kernel>;
std::string instantiation_of(const std::string& name, const std::string& kernel);

extern const Family kPagedAttention;  // paged_attention
extern const Family kGqaDecode;       // both forms of gqa_decode
extern const Family kSplitKvReduce;   // split_kv_reduce
extern const Family kPrefillTiled;    // prefill_tiled
extern const Family kPrefillNax;      // prefill_nax
extern const Family kMla;             // mla_decode and mla_prefill
extern const Family kPages;           // kv_write, copy_blocks and gather_blocks

}  // namespace pamx::plan
