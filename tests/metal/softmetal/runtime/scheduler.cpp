// Runs threadgroups one after the other, their threads as fibres, 32 to a simdgroup in lockstep.
//
// A simdgroup's lanes run one by one to their next simd operation or barrier; they must all stop at
// the same one. A simdgroup goes on from simd operation to simd operation until it comes to a
// threadgroup barrier or its end; then the next one runs. What is not ordered by a barrier thus
// happens in an order that the caller chooses.
#include <sys/mman.h>

#include <algorithm>
#include <cstdarg>
#include <cstdio>
#include <cstring>
#include <numeric>
#include <vector>

#include "launch.hpp"

extern "C" void softmetal_switch(void** save, void* load);

namespace softmetal {

Group group;
Launch launch;

namespace {

constexpr size_t kStackBytes = 256 << 10;
constexpr uint64_t kCanary = 0x5afe57ac4be9e5edull;

struct Simdgroup {  // the one whose lanes run
  uint32_t first;
  uint32_t lanes;
  uint32_t next;  // position in `order`
  uint32_t order[kSimdWidth];
};

Simdgroup running;
void* scheduler_stack;
uint64_t switches;

class Order {
 public:
  explicit Order(uint32_t order) : order_(order), state_(order) {}
  void arrange(uint32_t* items, uint32_t n) {
    if (order_ == 1) std::reverse(items, items + n);
    if (order_ <= 1) return;
    for (uint32_t i = n; i > 1; --i) std::swap(items[i - 1], items[random() % i]);
  }

 private:
  uint32_t random() {  // splitmix64
    uint64_t z = state_ += 0x9e3779b97f4a7c15u;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return uint32_t(z >> 32);
  }

  uint32_t order_;
  uint64_t state_;
};

char* stacks() {
  static char* const memory = [] {
    void* p = mmap(nullptr, kStackBytes * kMaxThreads, PROT_READ | PROT_WRITE,
                   MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    return p == MAP_FAILED ? nullptr : static_cast<char*>(p);
  }();
  if (!memory) fail("no memory for the threads' stacks");
  return memory;
}

uint64_t& canary(uint32_t thread_) {
  return *reinterpret_cast<uint64_t*>(stacks() + kStackBytes * thread_);
}

// On to the simdgroup's next lane, or back to the scheduler after the last.
__attribute__((noinline)) void leave(Lane& me) {
  ++switches;
  if (++running.next < running.lanes) {
    Lane& to = group.lanes[running.first + running.order[running.next]];
    group.current = to.index;
    softmetal_switch(&me.stack, to.stack);
  } else {
    softmetal_switch(&me.stack, scheduler_stack);
  }
}

void fibre() {
  launch.entry();
  Lane& me = group.lanes[group.current];
  me.state = kReturned;
  leave(me);
  __builtin_trap();
}

void start_threads() {
  for (uint32_t i = 0; i < group.threads; ++i) {
    void** top = reinterpret_cast<void**>(stacks() + kStackBytes * (i + 1));
    *--top = nullptr;  // a return address, so that the stack is aligned as after a call
    *--top = reinterpret_cast<void*>(&fibre);
    for (int k = 0; k < 6; ++k) *--top = nullptr;
    canary(i) = kCanary;
    group.lanes[i] = Lane{top, "the start", "", 0, i, kReady, 0};
  }
}

const char* describe(const Lane& lane) {
  static char texts[2][300];
  static int turn;
  char* text = texts[turn ^= 1];
  if (lane.state == kReturned)
    snprintf(text, sizeof texts[0], "has returned");
  else
    snprintf(text, sizeof texts[0], "is at %s (%s:%u)", lane.operation, lane.file, lane.line);
  return text;
}

bool together(const Lane& a, const Lane& b) {
  if (a.state != b.state) return false;
  return a.state == kReturned ||
         (a.line == b.line && a.operation == b.operation && a.file == b.file);
}

// Runs a simdgroup to its next threadgroup barrier or its end.
void run_simdgroup(uint32_t simdgroup, Order& order) {
  const uint32_t first = simdgroup * kSimdWidth;
  const uint32_t lanes = std::min(kSimdWidth, group.threads - first);
  Lane* lane = &group.lanes[first];
  while (lane[0].state == kReady) {
    running = Simdgroup{first, lanes, 0, {}};
    std::iota(running.order, running.order + lanes, 0);
    order.arrange(running.order, lanes);
    group.current = first + running.order[0];
    ++switches;
    softmetal_switch(&scheduler_stack, group.lanes[group.current].stack);
    for (uint32_t i = 1; i < lanes; ++i)
      if (!together(lane[0], lane[i]))
        fail("divergent simdgroup %u: lane 0 %s, lane %u %s", simdgroup, describe(lane[0]), i,
             describe(lane[i]));
    if (lane[0].state == kAtSimdOperation)
      for (uint32_t i = 0; i < lanes; ++i) lane[i].state = kReady;
  }
}

void run_threadgroup(Order& order) {
  start_threads();
  start_threadgroup_memory();
  const uint32_t simdgroups = (group.threads + kSimdWidth - 1) / kSimdWidth;
  uint32_t turns[kMaxThreads / kSimdWidth];
  for (;;) {
    std::iota(turns, turns + simdgroups, 0);
    order.arrange(turns, simdgroups);
    for (uint32_t i = 0; i < simdgroups; ++i) run_simdgroup(turns[i], order);

    const Lane& first = group.lanes[0];
    for (uint32_t s = 1; s < simdgroups; ++s) {
      const Lane& other = group.lanes[s * kSimdWidth];
      if (!together(first, other))
        fail("a barrier that not every thread reaches: simdgroup 0 %s, simdgroup %u %s",
             describe(first), s, describe(other));
    }
    if (first.state == kReturned) break;
    for (uint32_t i = 0; i < group.threads; ++i) group.lanes[i].state = kReady;
  }
  for (uint32_t i = 0; i < group.threads; ++i)
    if (canary(i) != kCanary)
      fail("thread %u used more than %zu KiB of stack", i, kStackBytes >> 10);
}

}  // namespace

void wait(State state, const char* operation, const char* file, uint line) {
  Lane& me = group.lanes[group.current];
  me.state = state;
  me.operation = operation;
  me.file = file;
  me.line = line;
  leave(me);
}

void fail(const char* format, ...) {
  va_list arguments;
  va_start(arguments, format);
  const int n =
      snprintf(launch.error, sizeof launch.error, "threadgroup (%u, %u, %u): ", group.position[0],
               group.position[1], group.position[2]);
  vsnprintf(launch.error + n, sizeof launch.error - size_t(n), format, arguments);
  va_end(arguments);
  siglongjmp(launch.failed, 1);
}

void run_grid() {
  const softmetal_launch& call = *launch.call;
  group.threads = call.group[0] * call.group[1] * call.group[2];
  std::copy_n(call.grid, 3, group.grid);
  std::copy_n(call.group, 3, group.size);
  std::copy_n(call.buffers, kMaxBuffers, group.buffers);
  switches = 0;
  Order order(call.order);
  static std::vector<uint32_t> turns;  // a failure jumps past destructors
  turns.resize(size_t(call.grid[0]) * call.grid[1] * call.grid[2]);
  std::iota(turns.begin(), turns.end(), 0);
  order.arrange(turns.data(), uint32_t(turns.size()));
  for (const uint32_t t : turns) {
    group.position[0] = t % call.grid[0];
    group.position[1] = t / call.grid[0] % call.grid[1];
    group.position[2] = t / call.grid[0] / call.grid[1];
    run_threadgroup(order);
  }
  launch.call->switches = switches;
}

}  // namespace softmetal
