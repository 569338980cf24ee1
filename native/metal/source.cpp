// Putting shader headers in place of the lines that include them.
#include "metal/source.hpp"

#include <cerrno>
#include <cstring>
#include <fstream>
#include <set>
#include <sstream>

#include "core/status.hpp"

namespace pamx::metal {

namespace {

// The name in a line `#include "name"`; empty: it is another line.
std::string included(const std::string& line) {
  std::istringstream words(line);
  std::string directive, name;
  words >> directive >> name;
  if (directive == "#") {
    directive += name;
    words >> name;
  }
  const bool quoted = name.size() > 2 && name.front() == '"' && name.back() == '"';
  return directive == "#include" && quoted ? name.substr(1, name.size() - 2) : "";
}

void append(const std::string& folder, const std::string& file, std::set<std::string>& seen,
            std::string& text) {
  if (!seen.insert(file).second) return;  // every header says #pragma once
  const auto check = [&](bool read) {
    if (read) return;
    throw Error(PAMX_FAILED, "the shader source " + folder + "/" + file +
                                 " cannot be read: " + std::strerror(errno ? errno : EIO));
  };
  errno = 0;
  std::ifstream stream(folder + "/" + file);
  check(stream.is_open());
  text += "#line 1 \"" + file + "\"\n";
  std::string line;
  for (int number = 1; std::getline(stream, line); ++number) {
    if (const std::string name = included(line); !name.empty()) {
      append(folder, name, seen, text);
      text += "#line " + std::to_string(number + 1) + " \"" + file + "\"\n";
    } else if (line != "#pragma once") {  // which means nothing, and warns, outside of a header
      text += line + "\n";
    } else {
      text += "\n";
    }
    errno = 0;
  }
  check(!stream.bad());
}

}  // namespace

std::string shader_source(const std::string& folder, const std::string& file) {
  std::set<std::string> seen;
  std::string text;
  append(folder, file, seen, text);
  return text;
}

}  // namespace pamx::metal
