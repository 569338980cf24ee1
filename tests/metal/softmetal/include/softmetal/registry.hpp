// How a program's kernels and function constants make themselves known when it is loaded.
#pragma once

#include "types.hpp"

namespace softmetal {

// softmetal_argument of runtime/abi.h says what the members mean.
struct Argument {
  const char* name;
  const char* attribute;
  int index;
  uint bytes;
  char kind;
  char read_only;
  const bool* needed;
};

void add_kernel(const char* name, const char* constants, void (*entry)(), const Argument* arguments,
                int count);
void add_constant(const char* name, int index, uint bytes, char type, void* storage);
// A program-scope constant that is computed from function constants: again before each launch.
void add_derived(void (*compute)());
bool is_defined(const void* storage);

}  // namespace softmetal
