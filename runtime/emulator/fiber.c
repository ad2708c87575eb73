/* The switch saves what the calling convention asks a function to keep, changes the stack pointer, and restores the
 * same from the other stack. Sanitizers are told of each switch, or they would take the new stack for a wild pointer.
 */
#include "fiber.h"

#include <stdint.h>
#include <string.h>

#ifdef FK_FIBER_ASAN
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#endif
#ifdef FK_FIBER_TSAN
void *__tsan_get_current_fiber(void);
void *__tsan_create_fiber(unsigned flags);
void __tsan_destroy_fiber(void *fiber);
void __tsan_switch_to_fiber(void *fiber, unsigned flags);
#endif

/* ---- the bare switch ---------------------------------------------------------------------------------- */

#ifndef FK_FIBER_UCONTEXT
/* Pushes the kept registers, stores the stack pointer to *save, and continues on the stack `load`. */
void fk_fiber_swap(void **save, void *load);
/* Where a new fiber begins: calls the function in one kept register with the argument in another. */
void fk_fiber_begin(void);
#endif

#if defined(FK_FIBER_UCONTEXT)

static void begin(unsigned start_hi, unsigned start_lo, unsigned arg_hi, unsigned arg_lo) {
    void (*start)(void *) = (void (*)(void *))(uintptr_t)((uint64_t)start_hi << 32 | start_lo);
    start((void *)(uintptr_t)((uint64_t)arg_hi << 32 | arg_lo));
}

static void prepare(fk_fiber *fiber, char *top, void (*start)(void *), void *arg) {
    const uint64_t f = (uint64_t)(uintptr_t)start, a = (uint64_t)(uintptr_t)arg;
    getcontext(&fiber->context);
    fiber->context.uc_stack.ss_sp = (void *)(uintptr_t)fiber->stack;
    fiber->context.uc_stack.ss_size = (size_t)(top - (const char *)fiber->stack);
    fiber->context.uc_link = NULL;
    makecontext(&fiber->context, (void (*)(void))begin, 4, (unsigned)(f >> 32), (unsigned)f, (unsigned)(a >> 32),
                (unsigned)a);
}

static void swap(fk_fiber *from, fk_fiber *to) {
    swapcontext(&from->context, &to->context);
}

#elif defined(__x86_64__)

__asm__(".text\n"
        ".p2align 4\n"
        ".globl fk_fiber_swap\n"
        ".hidden fk_fiber_swap\n"
        ".type fk_fiber_swap,@function\n"
        "fk_fiber_swap:\n"
        "    pushq %rbp\n"
        "    pushq %rbx\n"
        "    pushq %r12\n"
        "    pushq %r13\n"
        "    pushq %r14\n"
        "    pushq %r15\n"
        "    movq %rsp, (%rdi)\n"
        "    movq %rsi, %rsp\n"
        "    popq %r15\n"
        "    popq %r14\n"
        "    popq %r13\n"
        "    popq %r12\n"
        "    popq %rbx\n"
        "    popq %rbp\n"
        "    ret\n"
        ".size fk_fiber_swap,.-fk_fiber_swap\n"
        ".p2align 4\n"
        ".globl fk_fiber_begin\n"
        ".hidden fk_fiber_begin\n"
        ".type fk_fiber_begin,@function\n"
        "fk_fiber_begin:\n"
        "    .cfi_startproc\n"
        "    .cfi_undefined rip\n"
        "    movq %r12, %rdi\n"
        "    callq *%r13\n"
        "    ud2\n"
        "    .cfi_endproc\n"
        ".size fk_fiber_begin,.-fk_fiber_begin\n");

static void prepare(fk_fiber *fiber, char *top, void (*start)(void *), void *arg) {
    /* r15 r14 r13 r12 rbx rbp, the return address, and two words so that fk_fiber_begin calls on an aligned stack. */
    void **sp = (void **)(void *)top - 9;
    memset(sp, 0, 9 * sizeof *sp);
    sp[2] = (void *)(uintptr_t)start;
    sp[3] = arg;
    sp[6] = (void *)(uintptr_t)fk_fiber_begin;
    fiber->sp = sp;
}

#elif defined(__aarch64__)

__asm__(".text\n"
        ".p2align 4\n"
        ".globl fk_fiber_swap\n"
        ".hidden fk_fiber_swap\n"
        ".type fk_fiber_swap,%function\n"
        "fk_fiber_swap:\n"
        "    sub sp, sp, #160\n"
        "    stp x19, x20, [sp, #0]\n"
        "    stp x21, x22, [sp, #16]\n"
        "    stp x23, x24, [sp, #32]\n"
        "    stp x25, x26, [sp, #48]\n"
        "    stp x27, x28, [sp, #64]\n"
        "    stp x29, x30, [sp, #80]\n"
        "    stp d8, d9, [sp, #96]\n"
        "    stp d10, d11, [sp, #112]\n"
        "    stp d12, d13, [sp, #128]\n"
        "    stp d14, d15, [sp, #144]\n"
        "    mov x9, sp\n"
        "    str x9, [x0]\n"
        "    mov sp, x1\n"
        "    ldp x19, x20, [sp, #0]\n"
        "    ldp x21, x22, [sp, #16]\n"
        "    ldp x23, x24, [sp, #32]\n"
        "    ldp x25, x26, [sp, #48]\n"
        "    ldp x27, x28, [sp, #64]\n"
        "    ldp x29, x30, [sp, #80]\n"
        "    ldp d8, d9, [sp, #96]\n"
        "    ldp d10, d11, [sp, #112]\n"
        "    ldp d12, d13, [sp, #128]\n"
        "    ldp d14, d15, [sp, #144]\n"
        "    add sp, sp, #160\n"
        "    ret\n"
        ".size fk_fiber_swap,.-fk_fiber_swap\n"
        ".p2align 4\n"
        ".globl fk_fiber_begin\n"
        ".hidden fk_fiber_begin\n"
        ".type fk_fiber_begin,%function\n"
        "fk_fiber_begin:\n"
        "    mov x0, x19\n"
        "    blr x20\n"
        "    brk #0\n"
        ".size fk_fiber_begin,.-fk_fiber_begin\n");

static void prepare(fk_fiber *fiber, char *top, void (*start)(void *), void *arg) {
    void **sp = (void **)(void *)top - 20;
    memset(sp, 0, 20 * sizeof *sp);
    sp[0] = arg;
    sp[1] = (void *)(uintptr_t)start;
    sp[11] = (void *)(uintptr_t)fk_fiber_begin;
    fiber->sp = sp;
}

#endif

#ifndef FK_FIBER_UCONTEXT
static void swap(fk_fiber *from, fk_fiber *to) {
    fk_fiber_swap(&from->sp, to->sp);
}
#endif

/* ---- the switch as the sanitizers see it -------------------------------------------------------------- */

void fk_fiber_adopt(fk_fiber *fiber) {
    memset(fiber, 0, sizeof *fiber);
#ifdef FK_FIBER_TSAN
    fiber->shadow = __tsan_get_current_fiber();
#endif
}

void fk_fiber_init(fk_fiber *fiber, void *stack, size_t size, size_t colour, void (*start)(void *), void *arg) {
    memset(fiber, 0, sizeof *fiber);
    fiber->stack = stack;
    fiber->stack_size = size;
#ifdef FK_FIBER_ASAN
    ASAN_UNPOISON_MEMORY_REGION(stack, size); /* frames of a fiber that was discarded */
#endif
#ifdef FK_FIBER_TSAN
    fiber->shadow = __tsan_create_fiber(0);
#endif
    prepare(fiber, (char *)stack + size - colour, start, arg);
}

void fk_fiber_arrived(fk_fiber *fiber, fk_fiber *previous) {
#ifdef FK_FIBER_ASAN
    /* The first fiber to run tells where the OS thread's own stack lies. */
    const void *stack;
    size_t size;
    __sanitizer_finish_switch_fiber(fiber->fake_stack, &stack, &size);
    if (previous && !previous->stack) {
        previous->stack = stack;
        previous->stack_size = size;
    }
#else
    (void)fiber;
    (void)previous;
#endif
}

void fk_fiber_switch(fk_fiber *from, fk_fiber *to) {
#ifdef FK_FIBER_ASAN
    __sanitizer_start_switch_fiber(&from->fake_stack, to->stack, to->stack_size);
#endif
#ifdef FK_FIBER_TSAN
    __tsan_switch_to_fiber(to->shadow, 0);
#endif
    swap(from, to);
#ifdef FK_FIBER_ASAN
    __sanitizer_finish_switch_fiber(from->fake_stack, NULL, NULL);
#endif
}

void fk_fiber_leave(fk_fiber *from, fk_fiber *to) {
#ifdef FK_FIBER_ASAN
    __sanitizer_start_switch_fiber(NULL, to->stack, to->stack_size);
#endif
#ifdef FK_FIBER_TSAN
    __tsan_switch_to_fiber(to->shadow, 0);
#endif
    swap(from, to);
    __builtin_unreachable();
}

void fk_fiber_discard(fk_fiber *fiber) {
#ifdef FK_FIBER_TSAN
    if (fiber->shadow) __tsan_destroy_fiber(fiber->shadow);
    fiber->shadow = NULL;
#else
    (void)fiber;
#endif
}
