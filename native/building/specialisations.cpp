// Prints the specialisations that are worth compiling at installation: a line for each, the shader
// and the line that instantiates it.
#include <iostream>
#include <set>

#include "plan/launch/launch.hpp"

using pamx::Dtype;
using pamx::plan::Kernel;
using pamx::plan::LaunchShape;

namespace {

// Rows' type and pools' type.
constexpr std::pair<Dtype, Dtype> kTypes[] = {{Dtype::float16, Dtype::float16},
                                              {Dtype::bfloat16, Dtype::bfloat16}};
constexpr int32_t kDims[] = {64, 80, 96, 128, 192, 256};
constexpr int32_t kGroups[] = {1, 3, 4, 6, 8};
constexpr Kernel kKernels[] = {Kernel::paged_attention,  Kernel::gqa_decode,
                               Kernel::gqa_decode_heads, Kernel::split_kv_reduce,
                               Kernel::prefill_tiled,    Kernel::prefill_nax};
constexpr int32_t kPartitions[] = {0, 256, 512};

LaunchShape shape_of(Kernel kernel, std::pair<Dtype, Dtype> types, int32_t group, int32_t dim) {
  LaunchShape shape;
  shape.kernel = kernel;
  shape.dtype = types.first;
  shape.pool_dtype = types.second;
  shape.heads = group;
  shape.kv_heads = 1;
  shape.k_dim = shape.v_dim = dim;
  shape.block_size = 16;
  shape.num_partitions = 1;
  shape.rows = shape.tokens = 1;
  return shape;
}

std::set<std::string> printed;

void print(const LaunchShape& shape) {
  if (!pamx::plan::turned_down(shape).empty()) return;
  const auto launch = pamx::plan::launch_of(shape);
  if (!printed.insert(launch.function).second) return;
  std::cout << launch.source << '\t' << launch.instantiation << '\n';
}

}  // namespace

int main() {
  for (const auto& types : kTypes) {
    for (const int32_t dim : kDims) {
      print(shape_of(Kernel::kv_write, types, 1, dim));
      for (const Kernel kernel : kKernels) {
        for (const int32_t group : kGroups) {
          for (const int32_t partition : kPartitions) {
            LaunchShape shape = shape_of(kernel, types, group, dim);
            shape.partition = partition;
            print(shape);
          }
        }
      }
    }
  }
  LaunchShape pages = shape_of(Kernel::copy_blocks, kTypes[0], 1, 64);
  pages.block_bytes = 16;
  print(pages);
  pages.kernel = Kernel::gather_blocks;
  print(pages);
}
