// Threadgroup memory: each variable ends where memory ends, and starts with what nobody wrote.
#include <sys/mman.h>

#include <cstring>

#include "launch.hpp"

namespace softmetal {

namespace {

constexpr size_t kArea = kThreadgroupMemory + kPage;  // a variable, then a page of nothing

char* area(int i) {
  static char* areas[kMaxVariables];
  if (!areas[i]) {
    void* p = mmap(nullptr, kArea + kPage, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (p == MAP_FAILED) fail("no memory for threadgroup variables");
    areas[i] = static_cast<char*>(p) + kPage;
    mprotect(areas[i], kThreadgroupMemory, PROT_READ | PROT_WRITE);
  }
  return areas[i];
}

// Other orders find other leftovers, as on a GPU: NaN, a huge number, a huge negative one. A
// maximum hides the first and a minimum the second.
int leftover() {
  const int patterns[] = {0xff, 0x7f, 0xfe};
  return patterns[launch.call->order % 3];
}

char* allocate(const void* site, size_t bytes, const char* name) {
  const size_t aligned = (bytes + 15) & ~size_t(15);
  launch.threadgroup_bytes += aligned;
  if (launch.threadgroup_bytes > kThreadgroupMemory)
    fail("threadgroup memory exceeds 32 KiB: %zu bytes with '%s'", launch.threadgroup_bytes, name);
  if (launch.variable_count == kMaxVariables) fail("more than 64 threadgroup variables");
  char* start = area(launch.variable_count) + kThreadgroupMemory - aligned;
  memset(start, leftover(), aligned);
  launch.variables[launch.variable_count++] = ThreadgroupVariable{site, name, start, bytes};
  return start;
}

}  // namespace

void start_threadgroup_memory() {
  launch.variable_count = 0;
  launch.threadgroup_bytes = 0;
  for (int i = 0; i < launch.argument_count; ++i) {
    const softmetal_argument& a = launch.arguments[i];
    if (a.kind == 't')
      group.threadgroup_arguments[a.index] =
          allocate(&a, launch.call->threadgroup_bytes[a.index], a.name);
  }
}

void* threadgroup_variable(const void* site, ulong bytes, const char* name) {
  for (int i = 0; i < launch.variable_count; ++i)
    if (launch.variables[i].site == site) return launch.variables[i].memory;
  return allocate(site, bytes, name);
}

}  // namespace softmetal
