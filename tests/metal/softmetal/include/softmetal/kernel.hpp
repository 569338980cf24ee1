// How a launch reaches a kernel: arguments bound by their attributes, and the lists of kernels and
// function constants that a program shows its host. The translator writes the uses of this file.
#pragma once

#include "fibres.hpp"
#include "registry.hpp"
#include "vec.hpp"

namespace softmetal {

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

inline uint position(int what, uint axis) {
  const Group& g = group;
  const uint t = g.current;
  const uint local[] = {t % g.size[0], t / g.size[0] % g.size[1], t / g.size[0] / g.size[1]};
  switch (what) {
    case thread_position_in_grid:
      return g.position[axis] * g.size[axis] + local[axis];
    case threadgroup_position_in_grid:
      return g.position[axis];
    case thread_position_in_threadgroup:
      return local[axis];
    case threads_per_threadgroup:
    case dispatch_threads_per_threadgroup:
      return g.size[axis];
    case threadgroups_per_grid:
      return g.grid[axis];
    case threads_per_grid:
      return g.grid[axis] * g.size[axis];
    case thread_index_in_threadgroup:
      return t;
    case thread_index_in_simdgroup:
      return t % kSimdWidth;
    case simdgroup_index_in_threadgroup:
      return t / kSimdWidth;
    case simdgroups_per_threadgroup:
    case dispatch_simdgroups_per_threadgroup:
      return (g.threads + kSimdWidth - 1) / kSimdWidth;
  }
  return kSimdWidth;
}

// ---- one binding for each kind of attribute ---------------------------------------------------

template <class T>
struct is_const_type : metal::false_type {};
template <class T>
struct is_const_type<const T> : metal::true_type {};

template <int Index>
struct Buffer {
  static_assert(Index >= 0 && Index < int(kMaxBuffers), "a buffer index is below 31");
  static constexpr int key = Index;
  template <class P>
  struct As;
  template <class T>
  struct As<T*> {
    static T* get() { return (T*)group.buffers[Index]; }
    static Argument describe(const char* name) {
      return {name, "buffer", Index, sizeof(T), 'p', is_const_type<T>::value, nullptr};
    }
  };
  template <class T>
  struct As<T&> {
    static T& get() { return *(T*)group.buffers[Index]; }
    static Argument describe(const char* name) {
      return {name, "buffer", Index, sizeof(T), 'r', is_const_type<T>::value, nullptr};
    }
  };
};

// Bound only if a function constant says so.
template <int Index, const bool* Needed>
struct OptionalBuffer {
  static constexpr int key = Index;
  template <class P>
  struct As;
  template <class T>
  struct As<T*> {
    static T* get() { return (T*)(*Needed ? group.buffers[Index] : absent); }
    static Argument describe(const char* name) {
      return {name, "buffer", Index, sizeof(T), 'o', is_const_type<T>::value, Needed};
    }
  };
  template <class T>
  struct As<T&> {
    // The compiler may read through a reference before it knows whether it has to.
    static T& get() {
      alignas(16) static char nothing[sizeof(T)];
      return *(T*)(*Needed ? group.buffers[Index] : nothing);
    }
    static Argument describe(const char* name) {
      return {name, "buffer", Index, sizeof(T), 'o', is_const_type<T>::value, Needed};
    }
  };
};

template <int Index>
struct Threadgroup {
  static_assert(Index >= 0 && Index < int(kMaxBuffers), "a threadgroup index is below 31");
  static constexpr int key = 100 + Index;
  template <class P>
  struct As;
  template <class T>
  struct As<T*> {
    static T* get() { return (T*)group.threadgroup_arguments[Index]; }
    static Argument describe(const char* name) {
      return {name, "threadgroup", Index, sizeof(T), 't', 0, nullptr};
    }
  };
  template <class T>
  struct As<T&> {
    static T& get() { return *(T*)group.threadgroup_arguments[Index]; }
    static Argument describe(const char* name) {
      return {name, "threadgroup", Index, sizeof(T), 't', 0, nullptr};
    }
  };
};

template <Position What>
struct At {
  static constexpr int key = 200 + What;
  template <class P>
  struct As {
    static_assert(metal::is_same<P, uint>::value || metal::is_same<P, ushort>::value,
                  "a position is uint or ushort, or a vector of them");
    static P get() { return P(position(What, 0)); }
    static Argument describe(const char* name) {
      return {name, "position", 0, sizeof(P), 'v', 0, nullptr};
    }
  };
  template <class T, int N>
  struct As<metal::vec<T, N>> {
    static_assert(What < thread_index_in_threadgroup, "this position is a scalar");
    static_assert(metal::is_same<T, uint>::value || metal::is_same<T, ushort>::value,
                  "a position is uint or ushort, or a vector of them");
    static metal::vec<T, N> get() {
      metal::vec<T, N> r;
      for (int i = 0; i < N; ++i) r.v[i] = T(position(What, uint(i)));
      return r;
    }
    static Argument describe(const char* name) {
      return {name, "position", 0, sizeof(T) * N, 'v', 0, nullptr};
    }
  };
};

template <class... Bindings>
struct BindingList {
  static constexpr bool distinct() {
    const int keys[] = {Bindings::key..., -1};
    for (uint i = 0; i < sizeof...(Bindings); ++i)
      for (uint j = 0; j < i; ++j)
        if (keys[i] == keys[j]) return false;
    return true;
  }
};

// ---- what a program registers when it is loaded -----------------------------------------------

template <class Function, Function* f, class List>
struct Kernel;
template <class... P, void (*f)(P...), class... B>
struct Kernel<void(P...), f, BindingList<B...>> {
  static_assert(sizeof...(P) == sizeof...(B), "every parameter of a kernel has one attribute");
  static_assert(BindingList<B...>::distinct(),
                "two parameters of a kernel have the same attribute");
  static void entry() { f(B::template As<P>::get()...); }
  Kernel(const char* name, const char* constants, const char* const* names) {
    static Argument arguments[sizeof...(P) + 1];
    int i = 0;
    const int unused[] = {0, (arguments[i] = B::template As<P>::describe(names[i]), ++i)...};
    (void)unused;
    add_kernel(name, constants, &entry, arguments, i);
  }
};

template <class T>
struct Constant {
  static_assert(metal::is_arithmetic<T>::value, "a function constant is a scalar");
  Constant(const char* name, int index, T* storage) {
    const char type = metal::is_same<T, bool>::value       ? 'b'
                      : metal::is_same<T, half>::value     ? 'h'
                      : metal::is_floating_point<T>::value ? 'f'
                      : metal::is_signed<T>::value         ? 'i'
                                                           : 'u';
    add_constant(name, index, sizeof(T), type, storage);
  }
};

struct Derived {
  explicit Derived(void (*compute)()) { add_derived(compute); }
};

}  // namespace softmetal

#define SM_THREADGROUP_VARIABLE(dims, name, ...)                              \
  typedef __VA_ARGS__ sm_type_##name dims;                                    \
  static_assert(sizeof(sm_type_##name) <= ::softmetal::kThreadgroupMemory,    \
                "threadgroup variable '" #name "' exceeds 32 KiB");           \
  static char sm_site_##name;                                                 \
  sm_type_##name& name = *(sm_type_##name*)::softmetal::threadgroup_variable( \
      &sm_site_##name, sizeof(sm_type_##name), #name);

#define SM_FUNCTION_CONSTANT(index, name, ...) \
  static __VA_ARGS__ name;                     \
  static const ::softmetal::Constant<__VA_ARGS__> sm_constant_##name(#name, int(index), &name);

#define SM_DERIVED_CONSTANT(name, type, ...) \
  static type name;                          \
  static const ::softmetal::Derived sm_derived_##name([] { name = __VA_ARGS__; });

#define is_function_constant_defined(name) ::softmetal::is_defined(&name)
