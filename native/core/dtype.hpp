// The floating-point formats that kernels read and write.
#pragma once

#include <cstdint>

namespace pamx {

enum class Dtype : int32_t { float32, float16, bfloat16 };

// The pamx_dtype of this number. Throws Error if there is none; `name` goes into the message.
Dtype dtype_of(int32_t number, const char* name);

inline int64_t size_of(Dtype dtype) { return dtype == Dtype::float32 ? 4 : 2; }

}  // namespace pamx
