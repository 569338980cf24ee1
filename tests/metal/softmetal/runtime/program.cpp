// A program's kernels and function constants, and the check of a launch before it starts.
#include <cstdio>
#include <cstring>
#include <string>
#include <vector>

#include "launch.hpp"
#include "softmetal/registry.hpp"

namespace softmetal {

namespace {

struct KernelEntry {
  const char* name;
  const char* constants;
  void (*entry)();
  const softmetal_argument* arguments;
  int count;
};

struct ConstantEntry {
  softmetal_constant description;
  void* storage;
  bool defined;
};

// Functions, as other files register before this file's own variables would exist.
std::vector<KernelEntry>& kernels() {
  static std::vector<KernelEntry> all;
  return all;
}
std::vector<ConstantEntry>& constants() {
  static std::vector<ConstantEntry> all;
  return all;
}
std::vector<void (*)()>& derived() {
  static std::vector<void (*)()> all;
  return all;
}

std::string check_constants(const KernelEntry& kernel) {
  const std::string needed = std::string(",") + kernel.constants + ",";
  for (const ConstantEntry& c : constants())
    if (!c.defined && needed.find("," + std::string(c.description.name) + ",") != std::string::npos)
      return "function constant " + std::to_string(c.description.index) + " '" +
             c.description.name + "' is not set";
  return "";
}

std::string check_arguments(const KernelEntry& kernel, const softmetal_launch& call) {
  for (int i = 0; i < kernel.count; ++i) {
    const softmetal_argument& a = kernel.arguments[i];
    if (a.kind == 'v') continue;
    const std::string label =
        std::string(a.attribute) + "(" + std::to_string(a.index) + ") '" + a.name + "'";
    if (a.kind == 't') {
      if (!call.threadgroup_bytes[a.index]) return label + " has no length";
      continue;
    }
    if (a.kind == 'o' && !*a.needed) continue;
    if (!call.buffers[a.index]) return label + " is not bound";
    if (a.kind == 'r' && call.bytes[a.index] < a.bytes)
      return label + " is " + std::to_string(call.bytes[a.index]) + " bytes, the kernel needs " +
             std::to_string(a.bytes);
  }
  return "";
}

std::string check_size(const softmetal_launch& call) {
  for (int i = 0; i < 3; ++i) {
    if (!call.grid[i]) return "the grid has no threadgroups";
    if (call.group[i] > kMaxThreads) return "a threadgroup has more than 1024 threads";
  }
  const uint64_t threads = uint64_t(call.group[0]) * call.group[1] * call.group[2];
  if (!threads) return "a threadgroup has no threads";
  return threads > kMaxThreads ? "a threadgroup has more than 1024 threads" : "";
}

}  // namespace

void add_kernel(const char* name, const char* constants_, void (*entry)(),
                const Argument* arguments, int count) {
  kernels().push_back(
      {name, constants_, entry, reinterpret_cast<const softmetal_argument*>(arguments), count});
}
void add_constant(const char* name, int index, uint bytes, char type, void* storage) {
  constants().push_back({{name, index, bytes, type}, storage, false});
}
void add_derived(void (*compute)()) { derived().push_back(compute); }
bool is_defined(const void* storage) {
  for (const ConstantEntry& c : constants())
    if (c.storage == storage) return c.defined;
  return false;
}

}  // namespace softmetal

using namespace softmetal;

extern "C" {

int softmetal_kernel_count() { return int(kernels().size()); }
const char* softmetal_kernel_name(int i) { return kernels()[size_t(i)].name; }
const char* softmetal_kernel_constants(int i) { return kernels()[size_t(i)].constants; }
int softmetal_kernel_arguments(int i, const softmetal_argument** out) {
  *out = kernels()[size_t(i)].arguments;
  return kernels()[size_t(i)].count;
}

int softmetal_constant_count() { return int(constants().size()); }
const softmetal_constant* softmetal_constant_at(int i) {
  return &constants()[size_t(i)].description;
}
void softmetal_clear_constants() {
  for (ConstantEntry& c : constants()) {
    memset(c.storage, 0, c.description.bytes);
    c.defined = false;
  }
}
int softmetal_set_constant(int index, const void* value, uint32_t bytes) {
  for (ConstantEntry& c : constants()) {
    if (c.description.index != index) continue;
    if (c.description.bytes != bytes) return 1;
    memcpy(c.storage, value, bytes);
    c.defined = true;
  }
  return 0;
}

int softmetal_run(int kernel_index, softmetal_launch* call, char* error, size_t error_bytes) {
  const KernelEntry& kernel = kernels()[size_t(kernel_index)];
  call->fault_offset = 0;
  std::string wrong = check_size(*call);
  if (wrong.empty()) wrong = check_constants(kernel);
  if (wrong.empty()) {
    for (void (*compute)() : derived()) compute();
    wrong = check_arguments(kernel, *call);
  }
  if (!wrong.empty()) {
    snprintf(error, error_bytes, "%s: %s", kernel.name, wrong.c_str());
    return 1;
  }

  launch.kernel = kernel.name;
  launch.arguments = kernel.arguments;
  launch.argument_count = kernel.count;
  launch.call = call;
  launch.entry = kernel.entry;
  const FaultHandler handler;
  if (sigsetjmp(launch.failed, 1)) {
    snprintf(error, error_bytes, "%s: %s", kernel.name, launch.error);
    return 1;
  }
  run_grid();
  return 0;
}

}  // extern "C"
