// One command buffer a call.
#include "metal/commands.hpp"

#include "core/status.hpp"
#include "metal/plain_encoder.hpp"
#include "metal/words.hpp"

namespace pamx::metal {

Commands::Commands(id<MTLDevice> device)
    : queue_(Object<id<MTLCommandQueue>>::adopt([device newCommandQueue])) {
  if (!queue_) throw Error(PAMX_FAILED, "Metal gives no command queue");
}

double Commands::run(const std::function<void(KernelEncoder&)>& encode) {
  const auto commands = Object<id<MTLCommandBuffer>>::share([queue_.get() commandBuffer]);
  if (!commands) throw Error(PAMX_FAILED, "Metal gives no command buffer");
  {
    PlainEncoder encoder(commands.get());
    encode(encoder);
  }
  [commands.get() commit];
  [commands.get() waitUntilCompleted];
  if ([commands.get() status] != MTLCommandBufferStatusCompleted) {
    throw Error(PAMX_FAILED, "the GPU did not finish: " + words([commands.get() error]));
  }
  return [commands.get() GPUEndTime] - [commands.get() GPUStartTime];
}

}  // namespace pamx::metal
