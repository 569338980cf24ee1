// Which family describes a kernel, and what all of them share.
#include "plan/launch/launch.hpp"

#include "core/status.hpp"
#include "plan/launch/family.hpp"

namespace pamx::plan {

namespace {

const Family& family(Kernel kernel) {
  switch (kernel) {
    case Kernel::paged_attention:
      return kPagedAttention;
    case Kernel::gqa_decode:
    case Kernel::gqa_decode_heads:
      return kGqaDecode;
    case Kernel::split_kv_reduce:
      return kSplitKvReduce;
    case Kernel::prefill_tiled:
      return kPrefillTiled;
    case Kernel::prefill_nax:
      return kPrefillNax;
    case Kernel::mla_decode:
    case Kernel::mla_prefill:
      return kMla;
    case Kernel::kv_write:
    case Kernel::copy_blocks:
    case Kernel::gather_blocks:
      return kPages;
  }
  throw Error(PAMX_INVALID_ARGUMENT, "there is no kernel of this number");
}

}  // namespace

const char* metal_type(Dtype dtype) {
  switch (dtype) {
    case Dtype::float32:
      return "float";
    case Dtype::float16:
      return "half";
    case Dtype::bfloat16:
      return "bfloat";
  }
  throw Error(PAMX_INVALID_ARGUMENT, "there is no dtype of this number");
}

const char* short_name(Dtype dtype) {
  switch (dtype) {
    case Dtype::float32:
      return "f32";
    case Dtype::float16:
      return "f16";
    case Dtype::bfloat16:
      return "bf16";
  }
  throw Error(PAMX_INVALID_ARGUMENT, "there is no dtype of this number");
}

std::string turned_down(const LaunchShape& shape) {
  return family(shape.kernel).turned_down(shape);
}

Launch launch_of(const LaunchShape& shape) {
  const Family& of = family(shape.kernel);
  if (const std::string why = of.turned_down(shape); !why.empty()) {
    throw Error(PAMX_UNSUPPORTED, why);
  }
  return of.launch(shape);
}

int32_t tokens_a_row(const LaunchShape& shape) { return family(shape.kernel).tokens_a_row(shape); }

}  // namespace pamx::plan
