// Calling the compiler, and the interface of what it made (tests/metal/softmetal/runtime/abi.h).
#include "program.hpp"

#include <dlfcn.h>

#include <mutex>
#include <stdexcept>

namespace softmetal {

namespace {

// Writes the compiled library's path, or why there is none, into `answer`; 0 on success.
using Compiler = int (*)(const char* source, uint32_t language_version, char* answer, size_t size);

Compiler compiler = nullptr;
uint32_t order = 0;
std::mutex running;

}  // namespace

std::shared_ptr<Program> Program::compile(const std::string& source, uint32_t language_version) {
  if (!compiler) throw std::runtime_error("no compiler was set");
  std::string answer(1 << 16, '\0');
  const int failed = compiler(source.c_str(), language_version, answer.data(), answer.size());
  answer.resize(answer.find('\0'));
  if (failed) throw std::runtime_error(answer);
  return std::shared_ptr<Program>(new Program(answer));
}

Program::Program(const std::string& path) : handle_(dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL)) {
  if (!handle_) throw std::runtime_error(dlerror());
  const auto find = [&](auto& function, const char* name) {
    function = reinterpret_cast<std::decay_t<decltype(function)>>(dlsym(handle_, name));
    if (!function) throw std::runtime_error(path + " has no " + name);
  };
  find(kernel_count_, "softmetal_kernel_count");
  find(kernel_name_, "softmetal_kernel_name");
  find(kernel_constants_, "softmetal_kernel_constants");
  find(kernel_arguments_, "softmetal_kernel_arguments");
  find(constant_count_, "softmetal_constant_count");
  find(constant_at_, "softmetal_constant_at");
  find(clear_constants_, "softmetal_clear_constants");
  find(set_constant_, "softmetal_set_constant");
  find(run_, "softmetal_run");
}

Program::~Program() { dlclose(handle_); }

std::vector<std::string> Program::kernels() const {
  std::vector<std::string> names;
  for (int i = 0; i < kernel_count_(); ++i) names.push_back(kernel_name_(i));
  return names;
}

std::vector<softmetal_constant> Program::constants() const {
  std::vector<softmetal_constant> all;
  for (int i = 0; i < constant_count_(); ++i) all.push_back(*constant_at_(i));
  return all;
}

std::string Program::needed_constants(int kernel) const { return kernel_constants_(kernel); }

std::vector<softmetal_argument> Program::arguments(int kernel) const {
  const softmetal_argument* first = nullptr;
  const int count = kernel_arguments_(kernel, &first);
  return {first, first + count};
}

void Program::set(const std::vector<Constant>& constants) {
  clear_constants_();
  for (const Constant& c : constants) {
    set_constant_(static_cast<int>(c.index), c.value.data(), static_cast<uint32_t>(c.value.size()));
  }
}

bool Program::needs(const softmetal_argument& argument, const std::vector<Constant>& constants) {
  if (argument.kind != 'o') return argument.kind == 'p' || argument.kind == 'r';
  std::lock_guard lock(running);
  set(constants);
  return *argument.needed;
}

void Program::run(int kernel, const std::vector<Constant>& constants, softmetal_launch launch) {
  std::lock_guard lock(running);
  set(constants);
  launch.order = order;
  std::string error(1 << 12, '\0');
  if (run_(kernel, &launch, error.data(), error.size()) != 0) {
    error.resize(error.find('\0'));
    throw std::runtime_error(error);
  }
}

}  // namespace softmetal

extern "C" __attribute__((visibility("default"))) void softmetal_set_compiler(
    softmetal::Compiler compiler) {
  softmetal::compiler = compiler;
}

extern "C" __attribute__((visibility("default"))) void softmetal_set_order(uint32_t order) {
  softmetal::order = order;
}
