// What this library is: versions, build, processor, threads.
#include "core/status.hpp"
#include "cpu/isa/isa.hpp"
#include "cpu/worker_pool.hpp"
#include "mlx/version.h"

#define PAMX_TEXT_(x) #x
#define PAMX_TEXT(x) PAMX_TEXT_(x)

extern "C" const char* pamx_version(void) { return PAMX_TEXT(PAMX_VERSION); }

extern "C" const char* pamx_build_hash(void) { return PAMX_TEXT(PAMX_BUILD_HASH); }

extern "C" const char* pamx_mlx_compiled(void) {
  return PAMX_TEXT(MLX_VERSION_MAJOR) "." PAMX_TEXT(MLX_VERSION_MINOR) "." PAMX_TEXT(
      MLX_VERSION_PATCH);
}

extern "C" const char* pamx_mlx_loaded(void) { return mlx::core::version(); }

extern "C" const char* pamx_cpu_isa(void) { return pamx::cpu::isa_name(pamx::cpu::isa()); }

extern "C" int pamx_set_num_threads(int32_t num_threads) {
  return pamx::guarded([&] {
    pamx::require(
        num_threads >= 1 && num_threads <= 1024,
        "the number of threads must be from 1 to 1024, not " + std::to_string(num_threads));
    pamx::cpu::set_num_threads(num_threads);
  });
}

extern "C" int32_t pamx_num_threads(void) { return pamx::cpu::num_threads(); }

extern "C" void pamx_parallel(int64_t count, void (*item)(void*, int64_t), void* context) {
  if (item) pamx::cpu::worker_pool()->run(count, [=](int64_t i) { item(context, i); });
}
