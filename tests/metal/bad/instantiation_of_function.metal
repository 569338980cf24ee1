// expect: which is no kernel
#include <metal_stdlib>
using namespace metal;

template <int N>
void f(device float* out) { out[0] = N; }
template [[host_name("x")]] [[kernel]] decltype(f<1>) f<1>;
