/* Fibers: one stack per emulated thread, all on one OS thread, switched by hand. A fiber that is not running is its
 * stack pointer; everything else it owns lies on its stack. */
#ifndef FK_EMULATOR_FIBER_H
#define FK_EMULATOR_FIBER_H

#include <stddef.h>

#if !defined(FK_FIBER_UCONTEXT) && !defined(__x86_64__) && !defined(__aarch64__)
#define FK_FIBER_UCONTEXT
#endif
#ifdef FK_FIBER_UCONTEXT
#include <ucontext.h>
#endif

#if defined(__SANITIZE_ADDRESS__)
#define FK_FIBER_ASAN
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define FK_FIBER_ASAN
#endif
#endif
#if defined(__SANITIZE_THREAD__)
#define FK_FIBER_TSAN
#elif defined(__has_feature)
#if __has_feature(thread_sanitizer)
#define FK_FIBER_TSAN
#endif
#endif

typedef struct fk_fiber {
#ifdef FK_FIBER_UCONTEXT
    ucontext_t context;
#else
    void *sp;
#endif
    const void *stack; /* lowest byte, and size: for the sanitizers */
    size_t stack_size;
    void *fake_stack; /* ASan's */
    void *shadow;     /* TSan's */
} fk_fiber;

/** Makes `fiber` the caller's own stack, so that others can switch back to it. */
void fk_fiber_adopt(fk_fiber *fiber);
/** Prepares `start(arg)` on the stack; start never returns. `start` must call fk_fiber_arrived(fiber) first.
 *  The highest `colour` bytes are left unused: stacks whose tops share cache sets evict each other. */
void fk_fiber_init(fk_fiber *fiber, void *stack, size_t size, size_t colour, void (*start)(void *), void *arg);
/** Suspends `from` (the running fiber) and resumes `to`. */
void fk_fiber_switch(fk_fiber *from, fk_fiber *to);
/** As switch; `from` is never resumed. */
_Noreturn void fk_fiber_leave(fk_fiber *from, fk_fiber *to);
/** What a new fiber does first; `previous` is the fiber that switched to it. */
void fk_fiber_arrived(fk_fiber *fiber, fk_fiber *previous);
/** Forgets a fiber that is suspended or has left, so that its stack can be used again. */
void fk_fiber_discard(fk_fiber *fiber);

#endif
