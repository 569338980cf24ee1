// What the parts of the runtime share: one launch, from start to end or failure.
#pragma once

#include <setjmp.h>

#include <cstddef>
#include <cstdint>

#include "abi.h"
#include "softmetal/fibres.hpp"

namespace softmetal {

struct ThreadgroupVariable {
  const void* site;
  const char* name;
  char* memory;
  size_t bytes;
};
constexpr int kMaxVariables = 64;

struct Launch {
  const char* kernel;
  const softmetal_argument* arguments;
  int argument_count;
  softmetal_launch* call;
  void (*entry)();
  ThreadgroupVariable variables[kMaxVariables];
  int variable_count;
  size_t threadgroup_bytes;
  char error[2000];
  sigjmp_buf failed;
};

extern Launch launch;

// Runs every threadgroup; does not return if one fails.
void run_grid();
void start_threadgroup_memory();

// While it lives, a fault of the kernel's code ends the launch instead of the process.
class FaultHandler {
 public:
  FaultHandler();
  ~FaultHandler();
  FaultHandler(const FaultHandler&) = delete;
  FaultHandler& operator=(const FaultHandler&) = delete;
};

constexpr size_t kPage = 4096;
// Address space on either side of guarded memory: how far an index may be off and still be caught.
constexpr size_t kMargin = size_t(256) << 20;

}  // namespace softmetal
