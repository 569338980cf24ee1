// expect: a virtual function is not part of Metal
#include <metal_stdlib>
using namespace metal;

struct B {
  virtual void f() {}
};
kernel void k(device float* out [[buffer(0)]]) {
  B b;
  b.f();
  out[0] = 0;
}
