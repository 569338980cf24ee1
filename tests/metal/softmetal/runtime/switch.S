// softmetal_switch(void** save, void* load): leaves one fibre's stack for another's.
// Saves what the System V ABI of x86-64 has a function preserve; a new fibre's stack starts with
// six zeros and its entry point.
        .text
        .globl  softmetal_switch
        .hidden softmetal_switch
        .type   softmetal_switch, @function
softmetal_switch:
        pushq   %rbp
        pushq   %rbx
        pushq   %r12
        pushq   %r13
        pushq   %r14
        pushq   %r15
        movq    %rsp, (%rdi)
        movq    %rsi, %rsp
        popq    %r15
        popq    %r14
        popq    %r13
        popq    %r12
        popq    %rbx
        popq    %rbp
        ret
        .size   softmetal_switch, . - softmetal_switch
        .section .note.GNU-stack, "", @progbits
