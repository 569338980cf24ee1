// C++ exceptions in Objective-C++ on GCC's Objective-C runtime.
//
// clang has every function of such a file unwound by a routine of the Objective-C runtime, and that
// of GCC's runtime ends the process at a C++ exception. None of these files uses Objective-C
// exceptions, so C++'s own routine serves; hidden, it is used by the library at hand alone.
#define PERSONALITY(name)                 \
  __asm__(                                \
      ".text\n"                           \
      ".hidden " #name                    \
      "\n"                                \
      ".globl " #name                     \
      "\n"                                \
      ".type " #name ",@function\n" #name \
      ":\n"                               \
      "  jmp __gxx_personality_v0@PLT\n")

PERSONALITY(__gnu_objc_personality_v0);
PERSONALITY(__gnustep_objcxx_personality_v0);
