// What an architecture's name says about a GPU.
#include "plan/gpu_machine.hpp"

#include <charconv>

namespace pamx::plan {

bool has_tensor_units(const std::string& architecture) {
  const std::string prefix = "applegpu_g";
  if (architecture.compare(0, prefix.size(), prefix) != 0) return false;
  const char* end = architecture.data() + architecture.size();
  uint32_t generation = 0;
  const auto [rest, error] = std::from_chars(architecture.data() + prefix.size(), end, generation);
  if (error != std::errc{}) return false;
  const bool phone = rest != end && *rest == 'p';
  return generation >= (phone ? limits::TENSOR_GENERATION_PHONE : limits::TENSOR_GENERATION);
}

}  // namespace pamx::plan
