// The calling thread's last error message.
#include "core/status.hpp"

namespace pamx {

namespace {
thread_local std::string last_error;
}

void set_last_error(const char* message) noexcept {
  try {
    last_error = message;
  } catch (...) {
    last_error.clear();  // no memory even for the message: the status still says that it failed
  }
}

}  // namespace pamx

extern "C" const char* pamx_last_error(void) { return pamx::last_error.c_str(); }
