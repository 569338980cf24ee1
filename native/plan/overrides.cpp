// Reading the planner's PAMX_* variables.
#include "plan/overrides.hpp"

#include <charconv>
#include <cstdlib>
#include <string>

#include "core/status.hpp"

namespace pamx::plan {

namespace {

constexpr int32_t kUnset = 0;
thread_local int32_t forced_here = kUnset;

std::string variable(const char* name) {
  const char* value = std::getenv(name);
  return value ? value : "";
}

// Anything but a no is a yes.
bool is_set(const char* name) {
  std::string value = variable(name);
  for (char& c : value) {
    if (c >= 'A' && c <= 'Z') c = static_cast<char>(c - 'A' + 'a');
  }
  return !value.empty() && value != "0" && value != "false" && value != "no" && value != "off";
}

struct Environment {
  Overrides overrides;
  std::string wrong;
};

Environment read() {
  Environment e;
  e.overrides.disable_gqa_decode = is_set("PAMX_DISABLE_GQA_DECODE");
  e.overrides.disable_nax = is_set("PAMX_DISABLE_NAX");
  const std::string text = variable("PAMX_FORCE_PARTITION");
  if (text.empty()) return e;
  const char* end = text.data() + text.size();
  int32_t& tokens = e.overrides.force_partition;
  const auto [rest, error] = std::from_chars(text.data(), end, tokens);
  if (error != std::errc{} || rest != end || tokens < 0) {
    e.wrong = "PAMX_FORCE_PARTITION is '" + text + "', not a number of tokens";
  }
  return e;
}

}  // namespace

Overrides overrides() {
  static const Environment environment = read();
  Overrides found = environment.overrides;
  if (forced_here != kUnset) {
    found.force_partition = forced_here;
  } else if (!environment.wrong.empty()) {
    throw Error(PAMX_INVALID_ARGUMENT, environment.wrong);
  }
  return found;
}

void force_partition(int32_t tokens) { forced_here = tokens; }

}  // namespace pamx::plan
