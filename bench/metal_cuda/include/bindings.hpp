// How a launch's arguments reach a kernel, by the attributes of its parameters; the translator
// writes the uses of this file.
#pragma once

namespace softmetal {

constexpr int kMaxBuffers = 31;

// The one parameter of every __global__ function here.
struct Arguments {
  void* buffers[kMaxBuffers];
};

enum Position {
  thread_position_in_grid,
  threadgroup_position_in_grid,
  thread_position_in_threadgroup,
  threads_per_threadgroup,
  dispatch_threads_per_threadgroup,
  threadgroups_per_grid,
  threads_per_grid,
  // scalars
  thread_index_in_threadgroup,
  thread_index_in_simdgroup,
  simdgroup_index_in_threadgroup,
  simdgroups_per_threadgroup,
  dispatch_simdgroups_per_threadgroup,
  threads_per_simdgroup,
};

template <class Position>
inline uint axis_of(const Position& a, int axis) {
  return axis == 0 ? a.x : axis == 1 ? a.y : a.z;
}

template <int What>
inline uint position(int axis) {
  const uint index = threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z);
  const uint threads = blockDim.x * blockDim.y * blockDim.z;
  switch (What) {
    case thread_position_in_grid:
      return axis_of(blockIdx, axis) * axis_of(blockDim, axis) + axis_of(threadIdx, axis);
    case threadgroup_position_in_grid:
      return axis_of(blockIdx, axis);
    case thread_position_in_threadgroup:
      return axis_of(threadIdx, axis);
    case threads_per_threadgroup:
    case dispatch_threads_per_threadgroup:
      return axis_of(blockDim, axis);
    case threadgroups_per_grid:
      return axis_of(gridDim, axis);
    case threads_per_grid:
      return axis_of(gridDim, axis) * axis_of(blockDim, axis);
    case thread_index_in_threadgroup:
      return index;
    case thread_index_in_simdgroup:
      return index % 32;
    case simdgroup_index_in_threadgroup:  // from one lane, so that the compiler knows it for uniform
      return __shfl_sync(~0u, index / 32, 0);
    case simdgroups_per_threadgroup:
    case dispatch_simdgroups_per_threadgroup:
      return (threads + 31) / 32;
  }
  return 32;
}

template <int Index>
struct Buffer {
  template <class P>
  struct As;
  template <class T>
  struct As<T*> {
    static T* get(const Arguments& a) { return (T*)a.buffers[Index]; }
  };
  template <class T>
  struct As<T&> {
    static T& get(const Arguments& a) { return *(T*)a.buffers[Index]; }
  };
};

// Null if nobody asked for it: then the kernel does not read it.
template <int Index, const bool*>
struct OptionalBuffer : Buffer<Index> {};

extern __shared__ __align__(16) char dynamic_memory[];

template <int Index>
struct Threadgroup {
  static_assert(Index == 0, "one dynamic threadgroup buffer, at 0");
  template <class P>
  struct As;
  template <class T>
  struct As<T*> {
    static T* get(const Arguments&) { return (T*)dynamic_memory; }
  };
};

template <Position What>
struct At {
  template <class P>
  struct As {
    static P get(const Arguments&) { return P(position<What>(0)); }
  };
  template <class T, int N>
  struct As<metal::vec<T, N>> {
    static metal::vec<T, N> get(const Arguments&) {
      metal::vec<T, N> r;
      for (int i = 0; i < N; ++i) r.v[i] = T(position<What>(i));
      return r;
    }
  };
};

template <class... Bindings>
struct BindingList {};

template <class Function, Function* f, class List>
struct Kernel;
template <class... P, void (*f)(P...), class... B>
struct Kernel<void(P...), f, BindingList<B...>> {
  static void run(const Arguments& a) { f(B::template As<P>::get(a)...); }
};

// ---- function constants: the compiler's command line has their values ---------------------------

#ifndef SM_CONSTANT_0
#define SM_CONSTANT_0 0
#endif
#ifndef SM_CONSTANT_1
#define SM_CONSTANT_1 0
#endif
#ifndef SM_CONSTANT_2
#define SM_CONSTANT_2 0
#endif
#ifndef SM_CONSTANT_3
#define SM_CONSTANT_3 0
#endif

constexpr long function_constant(int index) {
  return index == 0   ? SM_CONSTANT_0
         : index == 1 ? SM_CONSTANT_1
         : index == 2 ? SM_CONSTANT_2
                      : SM_CONSTANT_3;
}

}  // namespace softmetal

#define SM_FUNCTION_CONSTANT(index, name, ...) \
  constexpr __VA_ARGS__ name = __VA_ARGS__(::softmetal::function_constant(int(index)));
#define SM_DERIVED_CONSTANT(name, type, ...) constexpr type name = __VA_ARGS__;

#define SM_THREADGROUP_VARIABLE(dims, name, ...)                         \
  typedef __VA_ARGS__ sm_type_##name dims;                               \
  __shared__ __align__(16) char sm_memory_##name[sizeof(sm_type_##name)]; \
  sm_type_##name& name = *(sm_type_##name*)sm_memory_##name;
