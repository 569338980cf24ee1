// Dtypes that C gave as numbers.
#include "core/dtype.hpp"

#include "core/status.hpp"

namespace pamx {

Dtype dtype_of(int32_t number, const char* name) {
  require(number >= PAMX_FLOAT32 && number <= PAMX_BFLOAT16,
          std::string(name) + " " + std::to_string(number) + " is none of pamx_dtype");
  return static_cast<Dtype>(number);
}

}  // namespace pamx
