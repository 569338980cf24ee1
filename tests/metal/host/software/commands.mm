// Command buffers and their encoder: what is encoded is checked at once and runs on commit.
//
// Dispatches between two barriers may run in any order, and here they run in reverse when tests ask
// for a descending order, so that a missing barrier gives wrong results.
#include <cstring>
#include <ctime>
#include <deque>

#include "device.hpp"

namespace {

struct Dispatch {
  SoftPipeline* pipeline;
  softmetal_launch launch;
  std::vector<SoftBuffer*> buffers;  // retained
  std::deque<std::string> bytes;
};

// Dispatches without a barrier between them. Deques: launches point into their dispatch, which
// stays where it is.
using Epoch = std::deque<Dispatch>;
using Epochs = std::deque<Epoch>;

bool descending = false;

double now() {
  timespec time;
  clock_gettime(CLOCK_MONOTONIC, &time);
  return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_nsec) * 1e-9;
}

}  // namespace

@interface SoftCommandBuffer : SoftObject <MTLCommandBuffer> {
 @public
  Epochs* epochs_;
  BOOL open_;
 @private
  MTLCommandBufferStatus status_;
  NSError* error_;
  double start_, end_;
}
@end

struct Slot {
  SoftBuffer* buffer;
  size_t offset;
  std::string* bytes;
};

@interface SoftEncoder : SoftObject <MTLComputeCommandEncoder> {
 @public
  SoftCommandBuffer* commands_;
  BOOL concurrent_;
 @private
  SoftPipeline* pipeline_;
  Slot slots_[SOFTMETAL_BUFFERS];
  size_t threadgroup_[SOFTMETAL_BUFFERS];
  BOOL ended_;
}
@end

@implementation SoftEncoder
- (void)checkOpen {
  if (ended_) softmetal::broke_rule("an encoder is used after endEncoding");
}
- (Slot&)slotAt:(NSUInteger)index {
  [self checkOpen];
  if (index >= SOFTMETAL_BUFFERS) softmetal::broke_rule("there is no buffer index above 30");
  return slots_[index];
}
- (void)setComputePipelineState:(id<MTLComputePipelineState>)state {
  [self checkOpen];
  if (!state) softmetal::broke_rule("a pipeline that is nil");
  [(SoftPipeline*)state retain];
  [pipeline_ release];
  pipeline_ = (SoftPipeline*)state;
}
- (void)setBuffer:(id<MTLBuffer>)buffer offset:(NSUInteger)offset atIndex:(NSUInteger)index {
  Slot& slot = [self slotAt:index];
  if (!buffer) softmetal::broke_rule("a buffer that is nil");
  if (offset >= [buffer length]) softmetal::broke_rule("an offset past the end of its buffer");
  [(SoftBuffer*)buffer retain];
  [slot.buffer release];
  delete slot.bytes;
  slot = {(SoftBuffer*)buffer, offset, nullptr};
}
- (void)setBytes:(const void*)bytes length:(NSUInteger)length atIndex:(NSUInteger)index {
  Slot& slot = [self slotAt:index];
  if (!length || length > 4096) softmetal::broke_rule("setBytes takes 1 to 4,096 bytes");
  [slot.buffer release];
  delete slot.bytes;
  slot = {nil, 0, new std::string(static_cast<const char*>(bytes), length)};
}
- (void)setThreadgroupMemoryLength:(NSUInteger)length atIndex:(NSUInteger)index {
  [self slotAt:index];
  if (length % 16) softmetal::broke_rule("threadgroup memory comes in multiples of 16 bytes");
  if (length > 32 * 1024) softmetal::broke_rule("there are 32 KiB of threadgroup memory");
  threadgroup_[index] = length;
}
- (void)checkArguments:(const softmetal_launch&)launch {
  const SoftFunction* function = pipeline_->function_;
  softmetal::Program& program = **function->program_;
  for (const softmetal_argument& argument : program.arguments(function->kernel_)) {
    const auto index = static_cast<size_t>(argument.index);
    const bool buffer = program.needs(argument, *function->constants_);
    if ((buffer && !launch.buffers[index]) ||
        (argument.kind == 't' && !launch.threadgroup_bytes[index])) {
      softmetal::broke_rule(std::string([[function name] UTF8String]) + ": " + argument.attribute +
                            " " + std::to_string(index) + " (" + argument.name + ") is not bound");
    }
  }
}
- (void)dispatchThreadgroups:(MTLSize)grid threadsPerThreadgroup:(MTLSize)threadgroup {
  [self checkOpen];
  if (!pipeline_) softmetal::broke_rule("a dispatch without a pipeline");
  const NSUInteger threads = threadgroup.width * threadgroup.height * threadgroup.depth;
  if (!threads || threads > [pipeline_ maxTotalThreadsPerThreadgroup]) {
    softmetal::broke_rule("a threadgroup of " + std::to_string(threads) + " threads");
  }
  if (!(grid.width * grid.height * grid.depth)) softmetal::broke_rule("an empty grid");
  if (commands_->epochs_->empty() || !concurrent_) commands_->epochs_->emplace_back();
  Epoch& epoch = commands_->epochs_->back();
  epoch.emplace_back();
  Dispatch& dispatch = epoch.back();
  dispatch.pipeline = [pipeline_ retain];
  softmetal_launch& launch = dispatch.launch;
  launch = {};
  const NSUInteger sizes[2][3] = {{grid.width, grid.height, grid.depth},
                                  {threadgroup.width, threadgroup.height, threadgroup.depth}};
  for (int i = 0; i < 3; ++i) {
    launch.grid[i] = static_cast<uint32_t>(sizes[0][i]);
    launch.group[i] = static_cast<uint32_t>(sizes[1][i]);
  }
  for (size_t i = 0; i < SOFTMETAL_BUFFERS; ++i) {
    launch.threadgroup_bytes[i] = threadgroup_[i];
    if (const Slot& slot = slots_[i]; slot.buffer) {
      dispatch.buffers.push_back([slot.buffer retain]);
      launch.buffers[i] = slot.buffer->memory_ + slot.offset;
      launch.bytes[i] = slot.buffer->length_ - slot.offset;
    } else if (slot.bytes) {
      dispatch.bytes.push_back(*slot.bytes);
      launch.buffers[i] = dispatch.bytes.back().data();
      launch.bytes[i] = slot.bytes->size();
    }
  }
  [self checkArguments:launch];
}
- (void)memoryBarrierWithScope:(MTLBarrierScope)scope {
  [self checkOpen];
  if (scope != MTLBarrierScopeBuffers) softmetal::broke_rule("a barrier of unknown scope");
  commands_->epochs_->emplace_back();
}
- (void)endEncoding {
  [self checkOpen];
  ended_ = YES;
  commands_->open_ = NO;
}
- (void)dealloc {
  if (!ended_) fprintf(stderr, "software Metal: an encoder is released before endEncoding\n");
  for (Slot& slot : slots_) {
    [slot.buffer release];
    delete slot.bytes;
  }
  [pipeline_ release];
  [commands_ release];
  [super dealloc];
}
@end

@implementation SoftCommandBuffer
- (id)init {
  if ((self = [super init])) epochs_ = new Epochs;
  return self;
}
- (MTLCommandBufferStatus)status {
  return status_;
}
- (NSError*)error {
  return error_;
}
- (CFTimeInterval)GPUStartTime {
  return start_;
}
- (CFTimeInterval)GPUEndTime {
  return end_;
}
- (id<MTLComputeCommandEncoder>)computeCommandEncoderWithDispatchType:(MTLDispatchType)type {
  if (open_) softmetal::broke_rule("two encoders of one command buffer at a time");
  if (status_ >= MTLCommandBufferStatusCommitted) softmetal::broke_rule("encoding after commit");
  SoftEncoder* encoder = [[[SoftEncoder alloc] init] autorelease];
  encoder->commands_ = [self retain];
  encoder->concurrent_ = type == MTLDispatchTypeConcurrent;
  epochs_->emplace_back();
  open_ = YES;
  return encoder;
}
- (void)run:(const Dispatch&)dispatch {
  const SoftFunction* function = dispatch.pipeline->function_;
  (*function->program_)->run(function->kernel_, *function->constants_, dispatch.launch);
}
- (void)commit {
  if (status_ >= MTLCommandBufferStatusCommitted) softmetal::broke_rule("a second commit");
  if (open_) softmetal::broke_rule("commit while an encoder is open");
  start_ = now();
  status_ = MTLCommandBufferStatusCompleted;
  try {
    for (const Epoch& epoch : *epochs_) {
      const size_t count = epoch.size();
      for (size_t i = 0; i < count; ++i) [self run:epoch[descending ? count - 1 - i : i]];
    }
  } catch (const std::exception& e) {
    status_ = MTLCommandBufferStatusError;
    error_ = [softmetal::error_of("MTLCommandBufferErrorDomain", e.what()) retain];
  }
  end_ = now();
}
- (void)waitUntilCompleted {
  if (status_ < MTLCommandBufferStatusCommitted) {
    softmetal::broke_rule("waiting for what was not committed never ends");
  }
}
- (void)dealloc {
  for (const Epoch& epoch : *epochs_) {
    for (const Dispatch& dispatch : epoch) {
      for (SoftBuffer* buffer : dispatch.buffers) [buffer release];
      [dispatch.pipeline release];
    }
  }
  delete epochs_;
  [error_ release];
  [super dealloc];
}
@end

@implementation SoftQueue
- (id<MTLCommandBuffer>)commandBuffer {
  return [[[SoftCommandBuffer alloc] init] autorelease];
}
@end

extern "C" __attribute__((visibility("default"))) void softmetal_set_descending(int32_t on) {
  descending = on != 0;
}
