// Products through mpp::tensor_ops, in every storage order: test_tensor_ops.py.
#include <metal_stdlib>

#include <MetalPerformancePrimitives/MetalPerformancePrimitives.h>

using namespace metal;
using namespace mpp::tensor_ops;

// d = a b + c, or a b, of matrices stored row-major (their transposes if TA or TB).
template <typename A, typename B, int M, int N, int K, bool TA, bool TB, bool ADD>
[[kernel]] void multiply(const device A* a [[buffer(0)]], const device B* b [[buffer(1)]],
                         const device float* c [[buffer(2)]], device float* d [[buffer(3)]]) {
  constexpr auto kind = ADD ? matmul2d_descriptor::mode::multiply_accumulate
                            : matmul2d_descriptor::mode::multiply;
  constexpr auto descriptor = matmul2d_descriptor(M, N, K, TA, TB, true, kind);
  matmul2d<descriptor, execution_simdgroup> product;
  auto left = product.template get_left_input_cooperative_tensor<A, B, float>();
  auto right = product.template get_right_input_cooperative_tensor<A, B, float>();
  auto out = product.template get_destination_cooperative_tensor<decltype(left), decltype(right),
                                                                 float>();
  for (ushort i = 0; i < left.get_capacity(); ++i) {
    const auto at = left.get_multidimensional_index(i);
    left[i] = a[at[1] * (TA ? M : K) + at[0]];
  }
  for (ushort i = 0; i < right.get_capacity(); ++i) {
    const auto at = right.get_multidimensional_index(i);
    right[i] = b[at[1] * (TB ? K : N) + at[0]];
  }
  for (ushort i = 0; i < out.get_capacity(); ++i) {
    const auto at = out.get_multidimensional_index(i);
    if (ADD) out[i] = c[at[1] * N + at[0]];
  }
  product.run(left, right, out);
  for (ushort i = 0; i < out.get_capacity(); ++i) {
    const auto at = out.get_multidimensional_index(i);
    if (out.get_mask(i)) d[at[1] * N + at[0]] = out[i];
  }
}

[[kernel]] void element_past_capacity(device float* d [[buffer(0)]]) {
  constexpr auto descriptor = matmul2d_descriptor(16, 32, 16);
  matmul2d<descriptor, execution_simdgroup> product;
  auto left = product.get_left_input_cooperative_tensor<half, half, float>();
  left[8] = half(d[0]);
}

[[kernel]] void not_every_lane(device float* d [[buffer(0)]], uint i [[thread_position_in_grid]]) {
  constexpr auto descriptor = matmul2d_descriptor(16, 32, 16);
  matmul2d<descriptor, execution_simdgroup> product;
  auto left = product.get_left_input_cooperative_tensor<half, half, float>();
  auto right = product.get_right_input_cooperative_tensor<half, half, float>();
  auto out =
      product.get_destination_cooperative_tensor<decltype(left), decltype(right), float>();
  if (i < 30) product.run(left, right, out);
  d[i] = out[0];
}
