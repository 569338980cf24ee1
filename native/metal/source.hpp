// Shader sources as the run-time compiler takes them: one text, for it knows no include path.
#pragma once

#include <string>

namespace pamx::metal {

// The file of `folder` with each `#include "..."` replaced by the file it names, once. Lines keep
// their names and numbers in error messages. Throws Error(PAMX_FAILED): a file cannot be read.
std::string shader_source(const std::string& folder, const std::string& file);

}  // namespace pamx::metal
