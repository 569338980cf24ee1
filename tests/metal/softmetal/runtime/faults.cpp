// Turns a processor fault of a kernel's code into a message that names what it touched.
#include <dlfcn.h>
#include <signal.h>
#include <sys/mman.h>
#include <ucontext.h>

#include <cstdio>
#include <cstring>

#include "launch.hpp"

namespace softmetal {

namespace {

const int kSignals[] = {SIGSEGV, SIGBUS, SIGFPE, SIGILL};
constexpr size_t kAbsentBytes = kMargin;

struct sigaction saved[4];
stack_t saved_stack;
alignas(16) char signal_stack[64 << 10];

// Distance of an address from a piece of memory, 0 inside.
size_t distance(const char* address, const char* start, size_t bytes) {
  if (address < start) return size_t(start - address);
  return address < start + bytes ? 0 : size_t(address - (start + bytes)) + 1;
}

[[noreturn]] void memory_fault(const char* address, bool writes) {
  const char* verb = writes ? "writes" : "reads";
  const uint32_t t = group.current;
  if (address >= reinterpret_cast<char*>(absent) &&
      address < reinterpret_cast<char*>(absent) + kAbsentBytes)
    fail("thread %u %s a buffer that its function constant leaves out", t, verb);

  const softmetal_argument* buffer = nullptr;
  size_t least = kMargin;
  for (int i = 0; i < launch.argument_count; ++i) {
    const softmetal_argument& a = launch.arguments[i];
    if (strcmp(a.attribute, "buffer") != 0 || !launch.call->buffers[a.index]) continue;
    const size_t d = distance(address, static_cast<char*>(launch.call->buffers[a.index]),
                              launch.call->bytes[a.index]);
    if (d < least) {
      buffer = &a;
      least = d;
    }
  }
  const ThreadgroupVariable* variable = nullptr;
  for (int i = 0; i < launch.variable_count; ++i) {
    const ThreadgroupVariable& v = launch.variables[i];
    const size_t d = distance(address, v.memory, v.bytes);
    if (d < least && d < kThreadgroupMemory) {
      variable = &v;
      least = d;
    }
  }

  if (variable)
    fail("thread %u %s byte %td of threadgroup variable '%s', which has %zu", t, verb,
         address - variable->memory, variable->name, variable->bytes);
  if (!buffer)
    fail("thread %u %s address %p, which belongs to no buffer", t, verb,
         static_cast<const void*>(address));
  if (least == 0)
    fail("thread %u writes to buffer(%d) '%s', which the kernel takes as const", t, buffer->index,
         buffer->name);
  fail("thread %u %s byte %td of buffer(%d) '%s', which has %zu", t, verb,
       address - static_cast<char*>(launch.call->buffers[buffer->index]), buffer->index,
       buffer->name, launch.call->bytes[buffer->index]);
}

void handle(int number, siginfo_t* info, void* context_) {
  const auto* context = static_cast<const ucontext_t*>(context_);
  const auto ip = static_cast<uintptr_t>(context->uc_mcontext.gregs[REG_RIP]);
  Dl_info library;
  if (dladdr(reinterpret_cast<void*>(ip), &library))
    launch.call->fault_offset = ip - reinterpret_cast<uintptr_t>(library.dli_fbase);
  if (number == SIGFPE) fail("thread %u divides an integer by zero", group.current);
  if (number == SIGILL) fail("thread %u runs into undefined behaviour", group.current);
  if (info->si_code == SI_KERNEL)
    fail("thread %u uses a misaligned or wild pointer", group.current);
  const bool writes = (context->uc_mcontext.gregs[REG_ERR] & 2) != 0;
  memory_fault(static_cast<const char*>(info->si_addr), writes);
}

unsigned char* reserve_absent() {
  void* p =
      mmap(nullptr, kAbsentBytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  return static_cast<unsigned char*>(p);
}

}  // namespace

unsigned char* const absent = reserve_absent();

FaultHandler::FaultHandler() {
  stack_t stack{};
  stack.ss_sp = signal_stack;
  stack.ss_size = sizeof signal_stack;
  sigaltstack(&stack, &saved_stack);
  struct sigaction action{};
  action.sa_sigaction = handle;
  action.sa_flags = SA_SIGINFO | SA_ONSTACK | SA_NODEFER;
  for (int i = 0; i < 4; ++i) sigaction(kSignals[i], &action, &saved[i]);
}

FaultHandler::~FaultHandler() {
  for (int i = 0; i < 4; ++i) sigaction(kSignals[i], &saved[i], nullptr);
  sigaltstack(&saved_stack, nullptr);
}

}  // namespace softmetal
