// The part of Foundation that native/metal uses, from Apple's public documentation: enough to
// cross-compile for macOS where its SDK is not.
#pragma once

#include <CoreFoundation/CoreFoundation.h>
#include <objc/NSObjCRuntime.h>
#include <objc/NSObject.h>
#include <objc/objc.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifndef NS_RETURNS_INNER_POINTER
#define NS_RETURNS_INNER_POINTER __attribute__((objc_returns_inner_pointer))
#endif

@class NSArray;

@interface NSString : NSObject
+ (instancetype)stringWithUTF8String:(const char*)bytes;
@property(readonly) const char* UTF8String NS_RETURNS_INNER_POINTER;
@end

@interface NSError : NSObject
@property(readonly) NSString* localizedDescription;
@end

@interface NSArray : NSObject
@end

@interface NSSet : NSObject
+ (instancetype)setWithArray:(NSArray*)array;
- (BOOL)containsObject:(id)object;
@end

@interface NSURL : NSObject
+ (instancetype)fileURLWithPath:(NSString*)path;
@end
