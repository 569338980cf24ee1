// expect: two kernels are called 'x'
#include <metal_stdlib>
using namespace metal;

template <int N>
[[kernel]] void k(device float* out [[buffer(0)]]) { out[0] = N; }
template [[host_name("x")]] [[kernel]] decltype(k<1>) k<1>;
template [[host_name("x")]] [[kernel]] decltype(k<2>) k<2>;
