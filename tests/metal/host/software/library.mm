// Libraries, functions and pipelines.
#include <algorithm>
#include <cstring>

#include "device.hpp"

namespace {

std::vector<softmetal::Constant>* values_of(void* values) {
  return static_cast<std::vector<softmetal::Constant>*>(values);
}

const softmetal::Constant* find(const std::vector<softmetal::Constant>& given, int32_t index) {
  for (const auto& constant : given) {
    if (static_cast<int32_t>(constant.index) == index) return &constant;
  }
  return nullptr;
}

// Whether `name` stands in a list of names that are separated by commas.
bool listed(const std::string& list, const std::string& name) {
  return ("," + list + ",").find("," + name + ",") != std::string::npos;
}

// What Metal says about constants that do not fit the function; empty: they do.
std::string refusal(const softmetal::Program& program, int kernel,
                    const std::vector<softmetal::Constant>& given) {
  const std::string needed = program.needed_constants(kernel);
  for (const softmetal_constant& constant : program.constants()) {
    const std::string name = constant.name;
    const softmetal::Constant* value = find(given, constant.index);
    if (value && value->type != constant.type) return "constant " + name + " has another type";
    if (!value && listed(needed, name)) return "constant " + name + " has no value";
  }
  return "";
}

}  // namespace

@implementation MTLFunctionConstantValues
- (id)init {
  if ((self = [super init])) {
    softmetal::alive(1);
    _values = new std::vector<softmetal::Constant>;
  }
  return self;
}
- (void)dealloc {
  delete values_of(_values);
  softmetal::alive(-1);
  [super dealloc];
}
- (void)setConstantValue:(const void*)value type:(MTLDataType)type atIndex:(NSUInteger)index {
  const bool is_bool = type == MTLDataTypeBool;
  if (!is_bool && type != MTLDataTypeUInt) softmetal::broke_rule("a constant of unknown type");
  values_of(_values)->push_back({static_cast<uint32_t>(index), is_bool ? 'b' : 'u',
                                 std::string(static_cast<const char*>(value), is_bool ? 1 : 4)});
}
@end

@implementation MTLFunctionConstantValues (Software)
- (const std::vector<softmetal::Constant>&)softValues {
  return *values_of(_values);
}
@end

@implementation SoftLibrary
- (id)initWithProgram:(std::shared_ptr<softmetal::Program>)program {
  if ((self = [super init])) program_ = new std::shared_ptr<softmetal::Program>(program);
  return self;
}
- (void)dealloc {
  delete program_;
  [super dealloc];
}
- (NSArray*)functionNames {
  NSMutableArray* names = [NSMutableArray array];
  for (const std::string& name : (*program_)->kernels()) {
    [names addObject:[NSString stringWithUTF8String:name.c_str()]];
  }
  return names;
}
- (id<MTLFunction>)newFunctionWithName:(NSString*)name
                        constantValues:(MTLFunctionConstantValues*)values
                                 error:(NSError**)error {
  const auto names = (*program_)->kernels();
  const auto found = std::find(names.begin(), names.end(), std::string([name UTF8String]));
  std::string wrong;
  if (found == names.end()) wrong = std::string("there is no function ") + [name UTF8String];
  const int kernel = static_cast<int>(found - names.begin());
  if (wrong.empty()) wrong = refusal(**program_, kernel, [values softValues]);
  if (!wrong.empty()) {
    if (error) *error = softmetal::error_of("MTLLibraryErrorDomain", wrong);
    return nil;
  }
  SoftFunction* function = [[SoftFunction alloc] init];
  function->program_ = new std::shared_ptr<softmetal::Program>(*program_);
  function->kernel_ = kernel;
  function->constants_ = new std::vector<softmetal::Constant>([values softValues]);
  return function;
}
@end

@implementation SoftFunction
- (NSString*)name {
  return
      [NSString stringWithUTF8String:(*program_)->kernels()[static_cast<size_t>(kernel_)].c_str()];
}
- (void)dealloc {
  delete program_;
  delete constants_;
  [super dealloc];
}
@end

@implementation SoftPipeline
- (NSUInteger)maxTotalThreadsPerThreadgroup {
  return softmetal::machine().most_threads;
}
- (NSUInteger)threadExecutionWidth {
  return 32;
}
- (void)dealloc {
  [function_ release];
  [super dealloc];
}
@end
