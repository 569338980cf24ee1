// A BLAS for libmlx: exports the cblas functions that it imports and forwards them to OpenBLAS.
//
// MLX's Linux wheel brings the reference BLAS. This library, opened with RTLD_GLOBAL before
// libmlx is loaded, comes first where the loader looks for cblas_*gemm. It is a library of its own
// because pamx's native library depends on libmlx. Python finds OpenBLAS (the scipy-openblas32
// package prefixes its symbols with scipy_), opens it here and only then makes this library
// global, so the functions below never run without it.
//
// OpenBLAS runs each call on the calling thread alone. Large products are cut into tiles, which
// pamx's worker pool shares out: no second pool of threads that spins, follows another count or is
// lost at fork. The tiles depend on the shape alone, so results do not depend on the threads.
#include <dlfcn.h>

#include <algorithm>
#include <atomic>
#include <cstdint>

namespace {

// cblas.h's enumerations.
enum Layout : int { kRowMajor = 101 };
enum Transpose : int { kNoTranspose = 111, kTranspose = 112 };

template <class T>
using Gemm = void (*)(int, int, int, int, int, int, T, const T*, int, const T*, int, T, T*, int);
template <class T>
using Gemv = void (*)(int, int, int, int, T, const T*, int, const T*, int, T, T*, int);
using ComplexGemm = void (*)(int, int, int, int, int, int, const void*, const void*, int,
                             const void*, int, const void*, void*, int);
using Item = void (*)(void* context, int64_t item);
using Parallel = void (*)(int64_t count, Item, void* context);

template <class T>
struct Functions {
  Gemm<T> gemm;
  Gemv<T> gemv;
};
Functions<float> singles;
Functions<double> doubles;
ComplexGemm complex_gemm;

void one_by_one(int64_t count, Item item, void* context) {
  for (int64_t i = 0; i < count; ++i) item(context, i);
}
std::atomic<Parallel> parallel{one_by_one};
std::atomic<int32_t (*)()> threads{[] { return 1; }};
std::atomic<int64_t> calls{0};

// Rows and columns of a tile: large enough that packing its operands is little of its work.
constexpr int kTile = 256;
// Multiplications below which a product is not worth a second thread.
constexpr int64_t kSmall = 1 << 20;

// C = alpha op(A) op(B) + beta C, all row-major, op(A) [m, k] and op(B) [k, n].
template <class T>
struct Product {
  bool a_transposed, b_transposed;
  int m, n, k;
  T alpha;
  const T* a;
  int lda;
  const T* b;
  int ldb;
  T beta;
  T* c;
  int ldc;

  Product tile(int row, int column) const {
    Product part = *this;
    part.m = std::min(kTile, m - row);
    part.n = std::min(kTile, n - column);
    part.a += static_cast<int64_t>(row) * (a_transposed ? 1 : lda);
    part.b += static_cast<int64_t>(column) * (b_transposed ? ldb : 1);
    part.c += static_cast<int64_t>(row) * ldc + column;
    return part;
  }

  void run(const Functions<T>& with) const {
    if (m == 1) {  // the row of A times B: B's rows are dotted with it, or added up
      clear(n, 1);
      const int step = a_transposed ? lda : 1;
      if (b_transposed) {
        with.gemv(kRowMajor, kNoTranspose, n, k, alpha, b, ldb, a, step, beta, c, 1);
      } else {
        with.gemv(kRowMajor, kTranspose, k, n, alpha, b, ldb, a, step, beta, c, 1);
      }
    } else if (n == 1) {
      clear(m, ldc);
      const int step = b_transposed ? 1 : ldb;
      if (a_transposed) {
        with.gemv(kRowMajor, kTranspose, k, m, alpha, a, lda, b, step, beta, c, ldc);
      } else {
        with.gemv(kRowMajor, kNoTranspose, m, k, alpha, a, lda, b, step, beta, c, ldc);
      }
    } else {
      with.gemm(kRowMajor, a_transposed ? kTranspose : kNoTranspose,
                b_transposed ? kTranspose : kNoTranspose, m, n, k, alpha, a, lda, b, ldb, beta, c,
                ldc);
    }
  }

  // With beta 0, C is written without being read; some gemv kernels multiply it all the same,
  // and MLX hands over memory in which a NaN may lie.
  void clear(int length, int step) const {
    if (beta != 0) return;
    for (int i = 0; i < length; ++i) c[static_cast<int64_t>(i) * step] = 0;
  }
};

template <class T>
void multiply(const Functions<T>& with, const Product<T>& whole) {
  const int rows = (whole.m + kTile - 1) / kTile, columns = (whole.n + kTile - 1) / kTile;
  const int64_t work = int64_t{whole.m} * whole.n * whole.k;
  if (work < kSmall || int64_t{rows} * columns == 1) return whole.run(with);
  struct Context {
    const Functions<T>& with;
    const Product<T>& whole;
    int columns;
  } context{with, whole, columns};
  const auto item = [](void* opaque, int64_t i) {
    const auto& [functions, product, width] = *static_cast<const Context*>(opaque);
    const int row = static_cast<int>(i / width), column = static_cast<int>(i % width);
    product.tile(row * kTile, column * kTile).run(functions);
  };
  parallel.load(std::memory_order_acquire)(int64_t{rows} * columns, item, &context);
}

template <class T>
void gemm(const Functions<T>& with, int layout, int transa, int transb, int m, int n, int k,
          T alpha, const T* a, int lda, const T* b, int ldb, T beta, T* c, int ldc) {
  calls.fetch_add(1, std::memory_order_relaxed);
  const bool plain = layout == kRowMajor && m > 0 && n > 0 && k > 0 &&
                     (transa == kNoTranspose || transa == kTranspose) &&
                     (transb == kNoTranspose || transb == kTranspose);
  if (!plain) {
    with.gemm(layout, transa, transb, m, n, k, alpha, a, lda, b, ldb, beta, c, ldc);
    return;
  }
  multiply(with, Product<T>{transa == kTranspose, transb == kTranspose, m, n, k, alpha, a, lda, b,
                            ldb, beta, c, ldc});
}

void* openblas = nullptr;
const char* (*config)();

template <class Function>
bool find(const char* name, Function& function) {
  function = reinterpret_cast<Function>(dlsym(openblas, name));
  return function != nullptr;
}

}  // namespace

#define PAMX_EXPORT extern "C" __attribute__((visibility("default")))

// Opens the OpenBLAS at `path`. Returns null, or why it cannot serve.
PAMX_EXPORT const char* pamx_blas_open(const char* path) {
  openblas = dlopen(path, RTLD_NOW | RTLD_LOCAL);
  if (openblas == nullptr) return dlerror();
  void (*set_threads)(int);
  const bool found =
      find("scipy_cblas_sgemm", singles.gemm) && find("scipy_cblas_sgemv", singles.gemv) &&
      find("scipy_cblas_dgemm", doubles.gemm) && find("scipy_cblas_dgemv", doubles.gemv) &&
      find("scipy_cblas_cgemm", complex_gemm) && find("scipy_openblas_get_config", config) &&
      find("scipy_openblas_set_num_threads", set_threads);
  if (!found) return "it lacks a function that MLX needs";
  set_threads(1);
  return nullptr;
}

// What the OpenBLAS that was opened says about itself.
PAMX_EXPORT const char* pamx_blas_version(void) { return config(); }

// From now on `run` (pamx_parallel) shares out the tiles of large products, on as many threads as
// `count` (pamx_num_threads) says.
PAMX_EXPORT void pamx_blas_share(Parallel run, int32_t (*count)()) {
  threads.store(count, std::memory_order_relaxed);
  parallel.store(run, std::memory_order_release);
}

PAMX_EXPORT int32_t pamx_blas_threads(void) { return threads.load(std::memory_order_relaxed)(); }

// Products computed here since the start, to see whether MLX really comes here.
PAMX_EXPORT int64_t pamx_blas_calls(void) { return calls.load(std::memory_order_relaxed); }

PAMX_EXPORT void cblas_sgemm(int layout, int transa, int transb, int m, int n, int k, float alpha,
                             const float* a, int lda, const float* b, int ldb, float beta, float* c,
                             int ldc) {
  gemm(singles, layout, transa, transb, m, n, k, alpha, a, lda, b, ldb, beta, c, ldc);
}

PAMX_EXPORT void cblas_dgemm(int layout, int transa, int transb, int m, int n, int k, double alpha,
                             const double* a, int lda, const double* b, int ldb, double beta,
                             double* c, int ldc) {
  gemm(doubles, layout, transa, transb, m, n, k, alpha, a, lda, b, ldb, beta, c, ldc);
}

PAMX_EXPORT void cblas_cgemm(int layout, int transa, int transb, int m, int n, int k,
                             const void* alpha, const void* a, int lda, const void* b, int ldb,
                             const void* beta, void* c, int ldc) {
  calls.fetch_add(1, std::memory_order_relaxed);
  complex_gemm(layout, transa, transb, m, n, k, alpha, a, lda, b, ldb, beta, c, ldc);
}
