// matmul2d on cooperative tensors, computed by fibres: tensor_ops_model.hpp.
#pragma once
#pragma clang system_header

#include "simd.hpp"
#include "simdgroup_matrix.hpp"

namespace softmetal {

inline uint lane() { return group.current % kSimdWidth; }

inline void out_of_range(uint i, int capacity) {
  fail("element %u of a cooperative tensor that has %d", i, capacity);
}

inline void meet_at_product(const char* file, uint line) {
  wait(kAtSimdOperation, "matmul2d", file, line);
  if (simdgroup_size() != kSimdWidth)
    fail("matmul2d at %s:%u in a simdgroup of %u threads", file, line, simdgroup_size());
}

// One for all: simdgroups take turns between waits, and two waits frame the use.
template <class T>
inline T& simdgroup_memory() {
  static T memory;
  return memory;
}

}  // namespace softmetal

#include "tensor_ops_model.hpp"
