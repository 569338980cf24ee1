// The encoder of mlx/backend/metal/device.h here. Barriers come by MLX's rule: before a dispatch
// that binds what one since the last barrier wrote, or writes what one bound.
#include "mlx/backend/metal/device.h"

#include <cstring>
#include <stdexcept>

#include "metal/buffer.hpp"
#include "metal/encoder.hpp"
#include "metal/gpu.hpp"

namespace mlx::core::metal {

namespace {

id<MTLDevice> software_device() { return (__bridge id<MTLDevice>)pamx::metal::system_gpu().device; }

}  // namespace

MTL::Device* Device::mtl_device() {
  return static_cast<MTL::Device*>(pamx::metal::system_gpu().device);
}

Device& device(mlx::core::Device) {
  static Device only;
  return only;
}

CommandEncoder& get_command_encoder(Stream) {
  static CommandEncoder only;
  return only;
}

void* CommandEncoder::memory_of(const array& a) {
  const void* key = a.buffer().ptr();
  void*& memory = memory_[key];
  if (!memory) {
    auto whole = a.buffer();
    const auto copy = pamx::metal::shared_copy(
        software_device(), static_cast<const char*>(whole.raw_ptr()), a.buffer_size());
    memory = (void*)[copy.get() retain];
  }
  return memory;
}

void CommandEncoder::set_compute_pipeline_state(MTL::ComputePipelineState* kernel) {
  plain_->set_pipeline({kernel});
}

void CommandEncoder::set_input_array(const array& a, int idx, int64_t offset) {
  const void* key = a.buffer().ptr();
  bound_.insert(key);
  inputs_now_.insert(key);
  needs_barrier_ = needs_barrier_ || earlier_outputs_.count(key);
  plain_->set_input(static_cast<uint32_t>(idx),
                    {memory_of(a), static_cast<uint64_t>(a.offset() + offset)});
}

void CommandEncoder::set_output_array(array& a, int idx, int64_t offset) {
  set_input_array(a, idx, offset);
  register_output_array(a);
}

void CommandEncoder::register_output_array(const array& a) {
  const void* key = a.buffer().ptr();
  outputs_.insert(key);
  outputs_now_.insert(key);
  written_.push_back(a);
  needs_barrier_ = needs_barrier_ || earlier_inputs_.count(key);
}

void CommandEncoder::set_bytes(const char* bytes, int size, int idx) {
  plain_->set_bytes(static_cast<uint32_t>(idx), bytes, static_cast<size_t>(size));
}

void CommandEncoder::set_threadgroup_memory_length(size_t length, int idx) {
  if (idx != 0) throw std::runtime_error("threadgroup memory at an index that is not 0");
  plain_->set_threadgroup_memory(static_cast<uint32_t>(length));
}

void CommandEncoder::add_temporary(array arr) { temporaries_.push_back(std::move(arr)); }

void CommandEncoder::dispatch_threadgroups(MTL::Size grid, MTL::Size group) {
  if (needs_barrier_) {
    plain_->barrier();
    ++barriers_;
    earlier_inputs_.clear();
    earlier_outputs_.clear();
    needs_barrier_ = false;
  }
  earlier_inputs_.merge(inputs_now_);
  earlier_outputs_.merge(outputs_now_);
  inputs_now_.clear();
  outputs_now_.clear();
  const auto of = [](const MTL::Size& size) {
    return std::array<uint32_t, 3>{static_cast<uint32_t>(size.width),
                                   static_cast<uint32_t>(size.height),
                                   static_cast<uint32_t>(size.depth)};
  };
  plain_->dispatch(of(grid), of(group));
}

void CommandEncoder::begin(pamx::metal::KernelEncoder& plain) {
  plain_ = &plain;
  outputs_.clear();
  for (Buffers* buffers : {&earlier_inputs_, &earlier_outputs_, &inputs_now_, &outputs_now_}) {
    buffers->clear();
  }
  needs_barrier_ = false;
  barriers_ = 0;
}

void CommandEncoder::end_primitive(const std::vector<array>& inputs,
                                   const std::vector<array>& outputs) {
  for (const auto* kept : {&inputs, &outputs, &std::as_const(temporaries_)}) {
    for (const array& a : *kept) bound_.erase(a.buffer().ptr());
  }
  if (!bound_.empty()) throw std::runtime_error("memory is bound that nobody keeps");
}

void CommandEncoder::finish() {
  for (array& a : written_) {
    const auto buffer = (__bridge id<MTLBuffer>)memory_[a.buffer().ptr()];
    std::memcpy(a.buffer().raw_ptr(), [buffer contents], [buffer length]);
  }
  for (const auto& [key, memory] : memory_) [(id<MTLBuffer>)memory release];
  memory_.clear();
  temporaries_.clear();
  written_.clear();
}

}  // namespace mlx::core::metal
