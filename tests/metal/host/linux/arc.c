// ARC for GCC's Objective-C runtime, which has none: the functions that clang's automatic reference
// counting calls, on top of retain and release messages.
//
// Linked into a library whose Objective-C is compiled with `-fobjc-runtime=gnustep-1.9 -fobjc-arc`
// and `-Wl,--wrap=__objc_exec_class`. Such a library may define no classes, whose layout differs
// between the two runtimes, and keep no weak references.
#include <stddef.h>

typedef struct objc_object* id;
typedef const struct objc_selector* SEL;
typedef id (*Method)(id, SEL);

extern Method objc_msg_lookup(id object, SEL selector);
extern SEL sel_registerName(const char* name);
extern id objc_lookUpClass(const char* name);

#define HIDDEN __attribute__((visibility("hidden")))

static id send(id object, const char* name) {
  const SEL selector = sel_registerName(name);
  return objc_msg_lookup(object, selector)(object, selector);
}

HIDDEN id objc_retain(id object) { return object ? send(object, "retain") : object; }

HIDDEN void objc_release(id object) {
  if (object) send(object, "release");
}

HIDDEN id objc_autorelease(id object) { return object ? send(object, "autorelease") : object; }

HIDDEN id objc_retainAutorelease(id object) { return objc_autorelease(objc_retain(object)); }

HIDDEN id objc_autoreleaseReturnValue(id object) { return objc_autorelease(object); }

HIDDEN id objc_retainAutoreleaseReturnValue(id object) { return objc_retainAutorelease(object); }

HIDDEN id objc_retainAutoreleasedReturnValue(id object) { return objc_retain(object); }

HIDDEN id objc_unsafeClaimAutoreleasedReturnValue(id object) { return object; }

HIDDEN void objc_storeStrong(id* place, id object) {
  const id before = *place;
  objc_retain(object);
  *place = object;
  objc_release(before);
}

HIDDEN void* objc_autoreleasePoolPush(void) {
  return send(send(objc_lookUpClass("NSAutoreleasePool"), "alloc"), "init");
}

HIDDEN void objc_autoreleasePoolPop(void* pool) { send((id)pool, "drain"); }

// The module record that clang writes for gnustep-1.9 differs from GCC's in its header alone.
struct module {
  unsigned long version, size;
};
extern void __real___objc_exec_class(struct module* module);
HIDDEN void __wrap___objc_exec_class(struct module* module) {
  module->version = 8;
  module->size = 32;
  __real___objc_exec_class(module);
}

// objc_msgSend looks the method up with every argument register put aside, then jumps to it.
__asm__(
    ".text\n"
    ".hidden objc_msgSend\n"
    ".globl objc_msgSend\n"
    ".type objc_msgSend,@function\n"
    "objc_msgSend:\n"
    "  pushq %rbp\n"
    "  movq %rsp, %rbp\n"
    "  subq $192, %rsp\n"
    "  movq %rdi, -8(%rbp)\n"
    "  movq %rsi, -16(%rbp)\n"
    "  movq %rdx, -24(%rbp)\n"
    "  movq %rcx, -32(%rbp)\n"
    "  movq %r8, -40(%rbp)\n"
    "  movq %r9, -48(%rbp)\n"
    "  movq %rax, -56(%rbp)\n"
    "  movups %xmm0, -80(%rbp)\n"
    "  movups %xmm1, -96(%rbp)\n"
    "  movups %xmm2, -112(%rbp)\n"
    "  movups %xmm3, -128(%rbp)\n"
    "  movups %xmm4, -144(%rbp)\n"
    "  movups %xmm5, -160(%rbp)\n"
    "  movups %xmm6, -176(%rbp)\n"
    "  movups %xmm7, -192(%rbp)\n"
    "  call objc_msg_lookup@PLT\n"
    "  movq %rax, %r11\n"
    "  movq -8(%rbp), %rdi\n"
    "  movq -16(%rbp), %rsi\n"
    "  movq -24(%rbp), %rdx\n"
    "  movq -32(%rbp), %rcx\n"
    "  movq -40(%rbp), %r8\n"
    "  movq -48(%rbp), %r9\n"
    "  movq -56(%rbp), %rax\n"
    "  movups -80(%rbp), %xmm0\n"
    "  movups -96(%rbp), %xmm1\n"
    "  movups -112(%rbp), %xmm2\n"
    "  movups -128(%rbp), %xmm3\n"
    "  movups -144(%rbp), %xmm4\n"
    "  movups -160(%rbp), %xmm5\n"
    "  movups -176(%rbp), %xmm6\n"
    "  movups -192(%rbp), %xmm7\n"
    "  leave\n"
    "  jmp *%r11\n");
