// What a kernel's code knows of the scheduler: the running threadgroup, waiting, and failing.
//
// Each thread of a threadgroup is a fibre. A fibre runs until it waits for its simdgroup or its
// threadgroup; nothing else interrupts it. runtime/scheduler.cpp has the other half.
#pragma once

#include "types.hpp"

namespace softmetal {

constexpr uint kSimdWidth = 32;
constexpr uint kMaxThreads = 1024;
constexpr uint kThreadgroupMemory = 32 * 1024;
constexpr uint kMaxBuffers = 31;
constexpr uint kSlotBytes = 16;

enum State : unsigned char { kReady, kAtSimdOperation, kAtBarrier, kReturned };

struct Lane {
  void* stack;
  const char* operation;  // where it waits, or waited last
  const char* file;
  uint line;
  uint index;  // of the thread in its threadgroup
  State state;
  unsigned char parity;  // of its next exchange
};

// What the lanes of a simdgroup show each other. Two sets take turns: a lane may come to the next
// exchange while another has yet to read this one.
struct Exchange {
  alignas(16) unsigned char slots[kMaxThreads][kSlotBytes];
  // A reduction is computed by the first lane that asks, for all.
  alignas(16) unsigned char result[kMaxThreads / kSimdWidth][kSlotBytes];
  bool has_result[kMaxThreads / kSimdWidth];
};

struct Group {
  Lane lanes[kMaxThreads];
  Exchange exchanges[2];
  uint threads;
  uint current;  // thread that runs
  uint position[3];
  uint grid[3];
  uint size[3];
  void* buffers[kMaxBuffers];
  void* threadgroup_arguments[kMaxBuffers];
};

extern Group group;

// Suspends the running thread until its simdgroup (or, at a barrier, its threadgroup) is here too.
void wait(State state, const char* operation, const char* file, uint line);

// Ends the launch with a message.
[[noreturn]] void fail(const char* format, ...) __attribute__((format(printf, 1, 2)));

// Threadgroup memory of a variable of the kernel: the same for every thread, told apart by `site`.
void* threadgroup_variable(const void* site, ulong bytes, const char* name);

// Memory that stands for a buffer that is not there: reading it faults.
extern unsigned char* const absent;

inline uint simdgroup_size() {
  const uint first = group.current & ~(kSimdWidth - 1);
  return group.threads - first < kSimdWidth ? group.threads - first : kSimdWidth;
}

}  // namespace softmetal
