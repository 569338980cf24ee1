// Between Objective-C's strings and errors and C++'s.
#pragma once

#import <Foundation/Foundation.h>

#include <string>

namespace pamx::metal {

inline std::string words(NSString* text) {
  const char* bytes = text ? [text UTF8String] : nullptr;
  return bytes ? bytes : "";
}

// What the system says went wrong, without the full stop that it may end in.
inline std::string words(NSError* error) {
  std::string text = error ? words([error localizedDescription]) : "no reason was given";
  while (!text.empty() && (text.back() == '\n' || text.back() == '.')) text.pop_back();
  return text;
}

inline NSString* text(const std::string& words) {
  return [NSString stringWithUTF8String:words.c_str()];
}

}  // namespace pamx::metal
