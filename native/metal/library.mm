// From a launch to a compiled pipeline: from the metallib if it holds the specialisation, else from
// the shader's source and the one line that instantiates it.
#include "metal/library.hpp"

#import <Metal/Metal.h>

#include <mutex>
#include <shared_mutex>
#include <unordered_map>

#include "../../shaders/params.h"
#include "core/status.hpp"
#include "metal/facts.hpp"
#include "metal/object.hpp"
#include "metal/source.hpp"
#include "metal/system.hpp"
#include "metal/words.hpp"

namespace pamx::metal {

namespace {

using Function = Object<id<MTLFunction>>;
using MetalLibrary = Object<id<MTLLibrary>>;
using State = Object<id<MTLComputePipelineState>>;

bool has(const plan::Launch& launch, FunctionConstant constant) {
  return launch.constant_mask >> constant & 1;
}

// The function with the values of its constants.
std::string key_of(const plan::Launch& launch) {
  std::string key = launch.function;
  if (has(launch, kHasWindow)) key += launch.has_window ? " window" : " -";
  if (has(launch, kHasSoftcap)) key += launch.has_softcap ? " softcap" : " -";
  if (has(launch, kHasSinks)) key += launch.has_sinks ? " sinks" : " -";
  if (has(launch, kBlockSize)) key += " " + std::to_string(launch.block_size);
  return key;
}

Object<MTLFunctionConstantValues*> constants_of(const plan::Launch& launch) {
  auto values = Object<MTLFunctionConstantValues*>::adopt([[MTLFunctionConstantValues alloc] init]);
  const auto set = [&](FunctionConstant constant, const void* value, MTLDataType type) {
    if (has(launch, constant)) [values.get() setConstantValue:value type:type atIndex:constant];
  };
  set(kHasWindow, &launch.has_window, MTLDataTypeBool);
  set(kHasSoftcap, &launch.has_softcap, MTLDataTypeBool);
  set(kHasSinks, &launch.has_sinks, MTLDataTypeBool);
  set(kBlockSize, &launch.block_size, MTLDataTypeUInt);
  return values;
}

// Numbers instead of names, so that older SDKs compile this file too.
constexpr auto kLanguage31 = static_cast<MTLLanguageVersion>((3 << 16) + 1);  // from macOS 14
constexpr auto kLanguage40 = static_cast<MTLLanguageVersion>(4 << 16);

MTLLanguageVersion language_of(const plan::Launch& launch) {
  if (launch.source != "prefill_nax.metal") return kLanguage31;
  if (const std::string version = os_version(); !compiles_tensor_operations(version)) {
    throw Error(PAMX_UNSUPPORTED, launch.source + " needs macOS 26.2 or later, and this is " +
                                      (version.empty() ? "of unknown version" : version));
  }
  return kLanguage40;
}

MetalLibrary compile(id<MTLDevice> device, const std::string& folder, const plan::Launch& launch) {
  auto options = Object<MTLCompileOptions*>::adopt([[MTLCompileOptions alloc] init]);
  [options.get() setLanguageVersion:language_of(launch)];
  [options.get() setFastMathEnabled:NO];  // infinities and NaN keep their meaning
  const std::string source = shader_source(folder, launch.source) +
                             "#line 1 \"the instantiation of " + launch.function + "\"\n" +
                             launch.instantiation + "\n";
  NSError* error = nil;
  auto library = MetalLibrary::adopt([device newLibraryWithSource:text(source)
                                                          options:options.get()
                                                            error:&error]);
  if (!library) {
    throw Error(PAMX_FAILED, "Metal does not compile " + launch.function + " of shaders/" +
                                 launch.source + ": " + words(error));
  }
  return library;
}

Function function_of(id<MTLLibrary> library, const plan::Launch& launch) {
  NSError* error = nil;
  const auto values = constants_of(launch);
  auto function = Function::adopt([library newFunctionWithName:text(launch.function)
                                                constantValues:values.get()
                                                         error:&error]);
  if (!function) {
    throw Error(PAMX_FAILED, "Metal does not specialise " + launch.function + " of shaders/" +
                                 launch.source + ": " + words(error));
  }
  return function;
}

State state_of(id<MTLDevice> device, id<MTLFunction> function, const plan::Launch& launch) {
  NSError* error = nil;
  auto state = State::adopt([device newComputePipelineStateWithFunction:function error:&error]);
  if (!state) {
    throw Error(PAMX_FAILED, "Metal makes no pipeline of " + launch.function + ": " + words(error));
  }
  const uint64_t threads =
      uint64_t{launch.threadgroup[0]} * launch.threadgroup[1] * launch.threadgroup[2];
  const uint64_t most = [state.get() maxTotalThreadsPerThreadgroup];
  if (threads > most) {  // it takes too many registers on this GPU
    throw Error(PAMX_UNSUPPORTED, launch.function + " needs threadgroups of " +
                                      std::to_string(threads) + " threads, and this GPU runs it " +
                                      "with " + std::to_string(most) + " at most");
  }
  if (const uint64_t width = [state.get() threadExecutionWidth]; width != limits::SIMD_WIDTH) {
    throw Error(PAMX_UNSUPPORTED, "this GPU's simdgroups have " + std::to_string(width) +
                                      " lanes; the kernels are written for 32");
  }
  return state;
}

}  // namespace

struct Library::Kept {
  Object<id<MTLDevice>> device;
  ShaderFiles files;
  MetalLibrary metallib;  // null: there is none
  Object<NSSet*> precompiled;
  std::once_flag opened;

  std::shared_mutex reading;  // guards states
  std::mutex compiling;       // one compilation at a time, without keeping readers waiting
  std::unordered_map<std::string, State> states;

  // A metallib of another system is no reason to fail: the sources serve.
  void open_metallib() {
    if (files.metallib.empty()) return;
    NSError* error = nil;
    NSURL* url = [NSURL fileURLWithPath:text(files.metallib)];
    metallib = MetalLibrary::adopt([device.get() newLibraryWithURL:url error:&error]);
    if (metallib) {
      precompiled = Object<NSSet*>::share([NSSet setWithArray:[metallib.get() functionNames]]);
    }
  }

  State find(const std::string& key) {
    std::shared_lock lock(reading);
    const auto found = states.find(key);
    return found == states.end() ? State() : found->second;
  }

  // With a pool of its own: calls are queued by threads that have none.
  State make(const plan::Launch& launch) {
    @autoreleasepool {
      std::call_once(opened, [&] { open_metallib(); });
      if (metallib && [precompiled.get() containsObject:text(launch.function)]) {
        return state_of(device.get(), function_of(metallib.get(), launch).get(), launch);
      }
      const MetalLibrary library = compile(device.get(), files.folder, launch);
      return state_of(device.get(), function_of(library.get(), launch).get(), launch);
    }
  }
};

Library::Library(void* device, ShaderFiles files) : kept_(std::make_unique<Kept>()) {
  kept_->device = Object<id<MTLDevice>>::share((__bridge id<MTLDevice>)device);
  kept_->files = std::move(files);
}

Library::~Library() = default;

Pipeline Library::pipeline(const plan::Launch& launch) {
  const std::string key = key_of(launch);
  State state = kept_->find(key);
  if (!state) {
    std::lock_guard lock(kept_->compiling);
    state = kept_->find(key);  // another thread may have made it meanwhile
    if (!state) {
      state = kept_->make(launch);
      std::unique_lock writing(kept_->reading);
      kept_->states.emplace(key, state);
    }
  }
  return {state.handle()};
}

}  // namespace pamx::metal
