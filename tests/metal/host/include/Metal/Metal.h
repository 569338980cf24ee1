// The part of Metal that native/metal uses, declared from Apple's public API documentation.
//
// It serves where Apple's SDK is not: for the software device on Linux, and to cross-compile for
// macOS. Selectors, argument counts and enum values are checked against the metal-cpp headers of
// the mlx-metal wheel by test_declarations.py.
#pragma once

#import <Foundation/Foundation.h>

#ifdef __APPLE__
#define SOFTMETAL_FIELDS(...)
#else
// The GNU runtime's classes are laid out by their declarations, so the fields stand here.
typedef double CFTimeInterval;
#define SOFTMETAL_FIELDS(...) \
  {                           \
   @private                   \
    __VA_ARGS__               \
  }
#ifndef NS_RETURNS_INNER_POINTER
#define NS_RETURNS_INNER_POINTER __attribute__((objc_returns_inner_pointer))
#endif
#endif

#define SOFTMETAL_RETAINED __attribute__((ns_returns_retained))

typedef struct {
  NSUInteger width, height, depth;
} MTLSize;

static inline MTLSize MTLSizeMake(NSUInteger width, NSUInteger height, NSUInteger depth) {
  MTLSize size = {width, height, depth};
  return size;
}

typedef enum MTLGPUFamily : NSInteger {
  MTLGPUFamilyApple1 = 1001,
} MTLGPUFamily;

typedef enum MTLResourceOptions : NSUInteger {
  MTLResourceStorageModeShared = 0,
  MTLResourceStorageModePrivate = 32,
} MTLResourceOptions;

typedef enum MTLDataType : NSUInteger {
  MTLDataTypeUInt = 33,
  MTLDataTypeBool = 53,
} MTLDataType;

typedef enum MTLLanguageVersion : NSUInteger {
  MTLLanguageVersion3_1 = 196609,
  MTLLanguageVersion4_0 = 262144,
} MTLLanguageVersion;

typedef enum MTLDispatchType : NSUInteger {
  MTLDispatchTypeSerial = 0,
  MTLDispatchTypeConcurrent = 1,
} MTLDispatchType;

typedef enum MTLBarrierScope : NSUInteger {
  MTLBarrierScopeBuffers = 1,
} MTLBarrierScope;

typedef enum MTLCommandBufferStatus : NSUInteger {
  MTLCommandBufferStatusNotEnqueued = 0,
  MTLCommandBufferStatusEnqueued = 1,
  MTLCommandBufferStatusCommitted = 2,
  MTLCommandBufferStatusScheduled = 3,
  MTLCommandBufferStatusCompleted = 4,
  MTLCommandBufferStatusError = 5,
} MTLCommandBufferStatus;

@protocol MTLBuffer
, MTLLibrary, MTLFunction, MTLComputePipelineState, MTLCommandQueue, MTLCommandBuffer,
    MTLComputeCommandEncoder;

@interface MTLArchitecture : NSObject
SOFTMETAL_FIELDS(NSString* _name;)
@property(readonly) NSString* name;
@end

@interface MTLCompileOptions : NSObject
SOFTMETAL_FIELDS(MTLLanguageVersion _version; BOOL _fast;)
@property(nonatomic) MTLLanguageVersion languageVersion;
@property(nonatomic) BOOL fastMathEnabled;
@end

@interface MTLFunctionConstantValues : NSObject
SOFTMETAL_FIELDS(void* _values;)
- (void)setConstantValue:(const void*)value type:(MTLDataType)type atIndex:(NSUInteger)index;
@end

@protocol MTLDevice <NSObject>
@property(readonly) NSString* name;
@property(readonly) MTLArchitecture* architecture;
@property(readonly) NSUInteger maxThreadgroupMemoryLength;
@property(readonly) NSUInteger maxBufferLength;
@property(readonly) uint64_t recommendedMaxWorkingSetSize;
- (BOOL)supportsFamily:(MTLGPUFamily)family;
- (id<MTLCommandQueue>)newCommandQueue SOFTMETAL_RETAINED;
- (id<MTLBuffer>)newBufferWithLength:(NSUInteger)length
                             options:(MTLResourceOptions)options SOFTMETAL_RETAINED;
- (id<MTLLibrary>)newLibraryWithSource:(NSString*)source
                               options:(MTLCompileOptions*)options
                                 error:(NSError**)error SOFTMETAL_RETAINED;
- (id<MTLLibrary>)newLibraryWithURL:(NSURL*)url error:(NSError**)error SOFTMETAL_RETAINED;
- (id<MTLComputePipelineState>)newComputePipelineStateWithFunction:(id<MTLFunction>)function
                                                             error:(NSError**)error
    SOFTMETAL_RETAINED;
@end

@protocol MTLBuffer <NSObject>
@property(readonly) NSUInteger length;
- (void*)contents NS_RETURNS_INNER_POINTER;
@end

@protocol MTLFunction <NSObject>
@property(readonly) NSString* name;
@end

@protocol MTLLibrary <NSObject>
@property(readonly) NSArray* functionNames;
- (id<MTLFunction>)newFunctionWithName:(NSString*)name
                        constantValues:(MTLFunctionConstantValues*)values
                                 error:(NSError**)error SOFTMETAL_RETAINED;
@end

@protocol MTLComputePipelineState <NSObject>
@property(readonly) NSUInteger maxTotalThreadsPerThreadgroup;
@property(readonly) NSUInteger threadExecutionWidth;
@end

@protocol MTLCommandEncoder <NSObject>
- (void)endEncoding;
@end

@protocol MTLComputeCommandEncoder <MTLCommandEncoder>
- (void)setComputePipelineState:(id<MTLComputePipelineState>)state;
- (void)setBuffer:(id<MTLBuffer>)buffer offset:(NSUInteger)offset atIndex:(NSUInteger)index;
- (void)setBytes:(const void*)bytes length:(NSUInteger)length atIndex:(NSUInteger)index;
- (void)setThreadgroupMemoryLength:(NSUInteger)length atIndex:(NSUInteger)index;
- (void)dispatchThreadgroups:(MTLSize)grid threadsPerThreadgroup:(MTLSize)threadgroup;
- (void)memoryBarrierWithScope:(MTLBarrierScope)scope;
@end

@protocol MTLCommandBuffer <NSObject>
@property(readonly) MTLCommandBufferStatus status;
@property(readonly) NSError* error;
@property(readonly) CFTimeInterval GPUStartTime;
@property(readonly) CFTimeInterval GPUEndTime;
- (id<MTLComputeCommandEncoder>)computeCommandEncoderWithDispatchType:(MTLDispatchType)type;
- (void)commit;
- (void)waitUntilCompleted;
@end

@protocol MTLCommandQueue <NSObject>
- (id<MTLCommandBuffer>)commandBuffer;
@end

#ifdef __cplusplus
extern "C"
#endif
    id<MTLDevice> MTLCreateSystemDefaultDevice(void) SOFTMETAL_RETAINED;
