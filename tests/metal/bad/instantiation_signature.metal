// expect: does not refer to a function template
#include <metal_stdlib>
using namespace metal;

template <int N>
[[kernel]] void k(device float* out [[buffer(0)]]) { out[0] = N; }
template [[host_name("x")]] [[kernel]] void k<1>(device int*);
