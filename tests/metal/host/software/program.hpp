// A compiled .metal source, run on the CPU.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "../../softmetal/runtime/abi.h"

namespace softmetal {

struct Constant {
  uint32_t index;
  char type;  // as in softmetal_constant
  std::string value;
};

class Program {
 public:
  // Compiles with the compiler that tests have set. Throws std::runtime_error with its words.
  static std::shared_ptr<Program> compile(const std::string& source, uint32_t language_version);
  ~Program();

  std::vector<std::string> kernels() const;
  std::vector<softmetal_constant> constants() const;
  // Names of the function constants that this kernel cannot do without.
  std::string needed_constants(int kernel) const;
  std::vector<softmetal_argument> arguments(int kernel) const;
  // One at a time in a process. Throws std::runtime_error: what the kernel did wrong.
  void run(int kernel, const std::vector<Constant>& constants, softmetal_launch launch);
  // Whether this buffer argument takes part, with these constants.
  bool needs(const softmetal_argument& argument, const std::vector<Constant>& constants);

 private:
  explicit Program(const std::string& path);
  void set(const std::vector<Constant>& constants);

  void* handle_;
  decltype(&softmetal_kernel_count) kernel_count_;
  decltype(&softmetal_kernel_name) kernel_name_;
  decltype(&softmetal_kernel_constants) kernel_constants_;
  decltype(&softmetal_kernel_arguments) kernel_arguments_;
  decltype(&softmetal_constant_count) constant_count_;
  decltype(&softmetal_constant_at) constant_at_;
  decltype(&softmetal_clear_constants) clear_constants_;
  decltype(&softmetal_set_constant) set_constant_;
  decltype(&softmetal_run) run_;
};

}  // namespace softmetal
