// Status codes, messages and the guard that keeps C++ exceptions from crossing the C interface.
#pragma once

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <new>
#include <stdexcept>
#include <string>

#if defined(__GNUC__)
#pragma GCC visibility push(default)
#endif
extern "C" {
#include "pamx.h"
}
#if defined(__GNUC__)
#pragma GCC visibility pop
#endif

namespace pamx {

// An error with the status that the C interface will return for it.
class Error : public std::runtime_error {
 public:
  Error(pamx_status status, const std::string& message)
      : std::runtime_error(message), status_(status) {}
  pamx_status status() const { return status_; }

 private:
  pamx_status status_;
};

inline void require(bool condition, const std::string& message) {
  if (!condition) throw Error(PAMX_INVALID_ARGUMENT, message);
}

// Without a string, or with a function that makes it: what is checked for every token of every
// layer must not write messages that nobody reads.
inline void require(bool condition, const char* message) {
  if (!condition) throw Error(PAMX_INVALID_ARGUMENT, message);
}
template <std::invocable Message>
void require(bool condition, Message&& message) {
  if (!condition) throw Error(PAMX_INVALID_ARGUMENT, message());
}

void set_last_error(const char* message) noexcept;

// Runs `body`; turns whatever it throws into a status and a message for this thread.
template <class Body>
int guarded(Body&& body) noexcept {
  try {
    body();
    return PAMX_OK;
  } catch (const Error& e) {
    set_last_error(e.what());
    return e.status();
  } catch (const std::bad_alloc&) {
    set_last_error("out of memory");
    return PAMX_FAILED;
  } catch (const std::exception& e) {
    set_last_error(e.what());
    return PAMX_FAILED;
  } catch (...) {
    set_last_error("unknown C++ exception");
    return PAMX_FAILED;
  }
}

}  // namespace pamx
