// The device: what it says of itself, and the objects that it makes.
#include "device.hpp"

#include <atomic>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <stdexcept>

namespace softmetal {

int32_t machine_cores();
const char* machine_os_version();

Machine& machine() {
  static Machine* const made = new Machine;
  return *made;
}

void broke_rule(const std::string& what) { throw std::runtime_error("Metal's rules: " + what); }

NSError* error_of(const char* domain, const std::string& what) {
  return
      [NSError errorWithDomain:[NSString stringWithUTF8String:domain]
                          code:1
                      userInfo:[NSDictionary
                                   dictionaryWithObject:[NSString stringWithUTF8String:what.c_str()]
                                                 forKey:NSLocalizedDescriptionKey]];
}

int32_t machine_cores() { return machine().cores; }
const char* machine_os_version() { return machine().os_version.c_str(); }

int64_t alive(int64_t change) {
  static std::atomic<int64_t> count{0};
  return count += change;
}

}  // namespace softmetal

@implementation SoftObject
- (id)init {
  if ((self = [super init])) softmetal::alive(1);
  return self;
}
- (void)dealloc {
  softmetal::alive(-1);
  [super dealloc];
}
@end

@implementation MTLArchitecture
- (NSString*)name {
  return [NSString stringWithUTF8String:softmetal::machine().architecture.c_str()];
}
@end

@implementation MTLCompileOptions
@synthesize languageVersion = _version, fastMathEnabled = _fast;
- (id)init {
  if ((self = [super init])) {
    softmetal::alive(1);
    _version = MTLLanguageVersion3_1;
    _fast = YES;  // as in Metal
  }
  return self;
}
- (void)dealloc {
  softmetal::alive(-1);
  [super dealloc];
}
@end

@interface SoftDevice : NSObject <MTLDevice>
@end

@implementation SoftDevice
- (NSString*)name {
  return [NSString stringWithUTF8String:softmetal::machine().name.c_str()];
}
- (MTLArchitecture*)architecture {
  return [[[MTLArchitecture alloc] init] autorelease];
}
- (NSUInteger)maxThreadgroupMemoryLength {
  return 32 * 1024;
}
- (NSUInteger)maxBufferLength {
  return softmetal::machine().largest_buffer;
}
- (uint64_t)recommendedMaxWorkingSetSize {
  return softmetal::machine().working_set;
}
- (BOOL)supportsFamily:(MTLGPUFamily)family {
  return family >= MTLGPUFamilyApple1 && family < MTLGPUFamilyApple1 + softmetal::machine().family;
}
- (id<MTLCommandQueue>)newCommandQueue {
  return [[SoftQueue alloc] init];
}
- (id<MTLBuffer>)newBufferWithLength:(NSUInteger)length options:(MTLResourceOptions)options {
  if (!length) softmetal::broke_rule("a buffer of no bytes");
  return [[SoftBuffer alloc] initWithLength:length
                                  isPrivate:options == MTLResourceStorageModePrivate];
}
- (id<MTLLibrary>)newLibraryWithSource:(NSString*)source
                               options:(MTLCompileOptions*)options
                                 error:(NSError**)error {
  try {
    if (options.fastMathEnabled) softmetal::broke_rule("these kernels rely on exact arithmetic");
    return [[SoftLibrary alloc]
        initWithProgram:softmetal::Program::compile(
                            [source UTF8String], static_cast<uint32_t>(options.languageVersion))];
  } catch (const std::exception& e) {
    if (error) *error = softmetal::error_of("MTLLibraryErrorDomain", e.what());
    return nil;
  }
}
// A "metallib" of this device is a file of Metal source, compiled without options.
- (id<MTLLibrary>)newLibraryWithURL:(NSURL*)url error:(NSError**)error {
  try {
    std::ifstream file([[url path] UTF8String]);
    if (!file) throw std::runtime_error("the file could not be opened");
    const std::string source{std::istreambuf_iterator<char>(file), {}};
    return [[SoftLibrary alloc]
        initWithProgram:softmetal::Program::compile(source, MTLLanguageVersion3_1)];
  } catch (const std::exception& e) {
    if (error) *error = softmetal::error_of("MTLLibraryErrorDomain", e.what());
    return nil;
  }
}
- (id<MTLComputePipelineState>)newComputePipelineStateWithFunction:(id<MTLFunction>)function
                                                             error:(NSError**)error {
  (void)error;
  SoftPipeline* pipeline = [[SoftPipeline alloc] init];
  pipeline->function_ = [(SoftFunction*)function retain];
  return pipeline;
}
@end

extern "C" __attribute__((visibility("default"))) id<MTLDevice> MTLCreateSystemDefaultDevice(void) {
  if (softmetal::machine().name.empty()) return nil;
  return [[SoftDevice alloc] init];
}

// ---- what tests set and ask -----------------------------------------------------------------

extern "C" __attribute__((visibility("default"))) int64_t softmetal_objects_alive(void) {
  return softmetal::alive(0);
}

extern "C" __attribute__((visibility("default"))) void softmetal_set_machine(
    const char* name, const char* architecture, const char* os_version, int32_t family,
    int32_t cores, uint32_t most_threads) {
  softmetal::Machine& machine = softmetal::machine();
  machine.name = name;
  machine.architecture = architecture;
  machine.os_version = os_version;
  machine.family = family;
  machine.cores = cores;
  machine.most_threads = most_threads;
}
