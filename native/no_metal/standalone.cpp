// The C interface of Metal in a library that was built without it.
#include "core/status.hpp"

namespace {

int absent() {
  return pamx::guarded([] {
    throw pamx::Error(PAMX_UNSUPPORTED, "this build of pamx has no Metal; Metal is macOS's");
  });
}

}  // namespace

extern "C" int32_t pamx_metal_built(void) { return 0; }

extern "C" int pamx_metal_configure(const char*, const char*) { return absent(); }

extern "C" int pamx_metal_gpu(pamx_metal_facts*) { return absent(); }

extern "C" int pamx_metal_buffer_create(int64_t, pamx_metal_buffer**) { return absent(); }

extern "C" void* pamx_metal_buffer_data(const pamx_metal_buffer*) { return nullptr; }

extern "C" int64_t pamx_metal_buffer_bytes(const pamx_metal_buffer*) { return 0; }

extern "C" void pamx_metal_buffer_free(pamx_metal_buffer*) {}

extern "C" int pamx_metal_attention(const pamx_batch*, const pamx_attention_params*,
                                    const pamx_metal_tensors*, pamx_metal_report*) {
  return absent();
}

extern "C" int pamx_metal_copy_blocks(const pamx_metal_buffer*, int64_t, const int32_t*,
                                      const int32_t*, int32_t) {
  return absent();
}

extern "C" int pamx_metal_gather(const pamx_metal_buffer*, const int32_t*, int32_t, int32_t,
                                 int32_t, int32_t, const pamx_metal_buffer*) {
  return absent();
}

extern "C" int pamx_metal_scratch_bytes(int64_t*) { return absent(); }

extern "C" int pamx_metal_run(const pamx_launch*, const pamx_metal_binding*, int32_t, double*) {
  return absent();
}
