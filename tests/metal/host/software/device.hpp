// Objects of the software device, and what its tests may set.
#pragma once

#import <Metal/Metal.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "program.hpp"

namespace softmetal {

// What the device says of itself; tests change it before a process's first call.
struct Machine {
  std::string name = "software Metal";
  std::string architecture = "applegpu_g15g";
  std::string os_version = "15.5";
  int32_t family = 9;
  int32_t cores = 10;
  uint64_t working_set = uint64_t{8} << 30;
  uint64_t largest_buffer = uint64_t{4} << 30;
  uint32_t most_threads = 1024;  // that a threadgroup of any pipeline may have
};
Machine& machine();

// Metal aborts a process that breaks its rules when validation is on; here it is an exception that
// the caller's guard turns into an error.
[[noreturn]] void broke_rule(const std::string& what);

NSError* error_of(const char* domain, const std::string& what);

// Objects of this device that are alive, for leak tests.
int64_t alive(int64_t change);

}  // namespace softmetal

// An object that is counted while it lives.
@interface SoftObject : NSObject
@end

@interface SoftBuffer : SoftObject <MTLBuffer> {
 @public
  char* memory_;
  size_t length_;
  BOOL private_;
 @private
  char* mapping_;
  size_t mapped_;
}
- (id)initWithLength:(size_t)length isPrivate:(BOOL)is_private;
@end

@interface SoftLibrary : SoftObject <MTLLibrary> {
 @public
  std::shared_ptr<softmetal::Program>* program_;
}
- (id)initWithProgram:(std::shared_ptr<softmetal::Program>)program;
@end

@interface SoftFunction : SoftObject <MTLFunction> {
 @public
  std::shared_ptr<softmetal::Program>* program_;
  int kernel_;
  std::vector<softmetal::Constant>* constants_;
}
@end

@interface SoftPipeline : SoftObject <MTLComputePipelineState> {
 @public
  SoftFunction* function_;
}
@end

@interface SoftQueue : SoftObject <MTLCommandQueue>
@end

@interface MTLFunctionConstantValues (Software)
- (const std::vector<softmetal::Constant>&)softValues;
@end
