// The C interface of a compiled .metal program: a shared library that runs its kernels on the CPU.
#pragma once

#include <stddef.h>
#include <stdint.h>

#define SOFTMETAL_BUFFERS 31

#ifdef __cplusplus
extern "C" {
#endif

struct softmetal_launch {
  uint32_t grid[3];   // threadgroups of the grid
  uint32_t group[3];  // threads of a threadgroup
  void* buffers[SOFTMETAL_BUFFERS];
  size_t bytes[SOFTMETAL_BUFFERS];  // behind each pointer
  size_t threadgroup_bytes[SOFTMETAL_BUFFERS];
  // The order in which threadgroups, simdgroups and lanes run: 0 ascending, 1 descending, else the
  // seed of a random one.
  uint32_t order;
  uint32_t reserved;
  uint64_t switches;      // out: fibre switches
  uint64_t fault_offset;  // out: where the code faulted, from the start of the library; 0: nowhere
};

struct softmetal_argument {
  const char* name;
  const char* attribute;  // "buffer", "threadgroup", or the position attribute
  int32_t index;          // of a buffer or threadgroup argument
  uint32_t bytes;         // of the type pointed to
  // 'p' pointer, 'r' reference, 'o' buffer of a function constant, 't' threadgroup, 'v' position
  char kind;
  char read_only;
  const bool* needed;  // 'o': the function constant
};

struct softmetal_constant {
  const char* name;
  int32_t index;
  uint32_t bytes;
  char type;  // 'b' bool, 'i' signed, 'u' unsigned, 'f' float, 'h' half
};

int softmetal_kernel_count(void);
const char* softmetal_kernel_name(int kernel);
// Names of the function constants that the kernel cannot do without, separated by commas.
const char* softmetal_kernel_constants(int kernel);
int softmetal_kernel_arguments(int kernel, const struct softmetal_argument** out);

int softmetal_constant_count(void);
const struct softmetal_constant* softmetal_constant_at(int i);
void softmetal_clear_constants(void);
// Sets the constant of that index, 0; 1 if it has another size. An index that the program lacks is
// no error.
int softmetal_set_constant(int index, const void* value, uint32_t bytes);

// 0, or 1 with the reason in `error`. One launch at a time in a process.
int softmetal_run(int kernel, struct softmetal_launch* launch, char* error, size_t error_bytes);

// Memory between two areas that no kernel can touch. Its end, or with `at_start` its start, lies
// at the very border; the few bytes left on the other side are filled and compared.
void* softmetal_guarded_new(size_t bytes, int at_start);
void softmetal_guarded_protect(void* memory, int read_only);
// 1 if the margins were written to; `byte` is then where, counted from the start of the memory.
int softmetal_guarded_damage(void* memory, int64_t* byte);
void softmetal_guarded_delete(void* memory);

#ifdef __cplusplus
}
#endif
