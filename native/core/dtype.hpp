// The floating-point formats that kernels read and write.
#pragma once

#include <cstdint>

namespace pamx {

enum class Dtype : int32_t { float32, float16, bfloat16 };

inline int64_t size_of(Dtype dtype) { return dtype == Dtype::float32 ? 4 : 2; }

}  // namespace pamx
