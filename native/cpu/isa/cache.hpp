// How large this processor's second-level cache is.
#pragma once

#include <cstdint>

namespace pamx::cpu {

// Bytes of L2 that one core can use; the same in every call. 512 KiB where the system does not say.
int64_t l2_bytes();

}  // namespace pamx::cpu
