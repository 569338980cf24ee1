// What every attention kernel asks of a shape, and the source line that makes a specialisation.
#include "../../../shaders/limits.h"
#include "plan/launch/family.hpp"

namespace pamx::plan {

namespace {

std::string why_not_dim(int32_t dim, const char* name) {
  if (dim > 0 && dim % static_cast<int32_t>(limits::HEAD_DIM_STEP) == 0 &&
      dim <= static_cast<int32_t>(limits::LARGEST_HEAD_DIM)) {
    return {};
  }
  return std::string(name) + " " + std::to_string(dim) + " is not a multiple of " +
         std::to_string(limits::HEAD_DIM_STEP) + " up to " +
         std::to_string(limits::LARGEST_HEAD_DIM);
}

bool is_block_size(int32_t size) {
  return size == static_cast<int32_t>(limits::LARGEST_BLOCK_SIZE) ||
         size == static_cast<int32_t>(limits::MIDDLE_BLOCK_SIZE) ||
         size == static_cast<int32_t>(limits::SMALLEST_BLOCK_SIZE);
}

}  // namespace

bool stores(Dtype pool_dtype, Dtype dtype) {
  return pool_dtype == dtype || dtype == Dtype::float32;
}

std::string why_not_attention(const LaunchShape& shape) {
  if (shape.heads <= 0 || shape.kv_heads <= 0 || shape.heads % shape.kv_heads != 0) {
    return std::to_string(shape.heads) + " query heads are not a multiple of " +
           std::to_string(shape.kv_heads) + " KV heads";
  }
  if (auto why = why_not_dim(shape.k_dim, "k_dim"); !why.empty()) return why;
  if (auto why = why_not_dim(shape.v_dim, "v_dim"); !why.empty()) return why;
  if (!is_block_size(shape.block_size)) {
    return "there are no pages of " + std::to_string(shape.block_size) + " tokens";
  }
  if (!stores(shape.pool_dtype, shape.dtype)) {
    return std::string(short_name(shape.pool_dtype)) + " pools do not go with " +
           short_name(shape.dtype) + " rows";
  }
  if (shape.rows <= 0) return "there are no rows";
  return {};
}

std::string instantiation_of(const std::string& name, const std::string& kernel) {
  return "template [[host_name(\"" + name + "\")]] [[kernel]] decltype(" + kernel + ") " + kernel +
         ";";
}

}  // namespace pamx::plan
