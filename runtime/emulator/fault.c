/* Signals of a kernel. The handler runs on the OS thread's alternate stack, notes the signal in the block and switches
 * to the scheduler, as any other fault does; the words are found there, where locks may be taken. A signal that no lane
 * caused goes to the handler of before. */
#include "engine.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#define STACK_BYTES 65536u

static const int caught[] = {SIGSEGV, SIGBUS, SIGFPE};
#define NUM_CAUGHT (sizeof caught / sizeof *caught)

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static unsigned users;                        /* under the lock */
static struct sigaction previous[NUM_CAUGHT]; /* written under the lock before the handler is installed */

static void pass_on(int number, siginfo_t *info, void *context) {
    for (size_t i = 0; i < NUM_CAUGHT; ++i) {
        if (caught[i] != number) continue;
        if (previous[i].sa_flags & SA_SIGINFO)
            previous[i].sa_sigaction(number, info, context);
        else if (previous[i].sa_handler != SIG_DFL && previous[i].sa_handler != SIG_IGN)
            previous[i].sa_handler(number);
        else
            sigaction(number, &previous[i], NULL); /* the act repeats, now with its default end */
    }
}

static void on_signal(int number, siginfo_t *info, void *context) {
    fk_block *block = fk_block_current();
    if (!block || info->si_code <= 0) { /* not while running a block, or sent by kill() */
        pass_on(number, info, context);
        return;
    }
    block->signal = number;
    block->signal_address = info->si_code == SI_KERNEL ? UINTPTR_MAX : (uintptr_t)info->si_addr;
    fk_block_abort(block);
}

/* TSan cannot follow a handler that leaves by a switch; with it, a fault ends the process with TSan's report. */
#ifdef FK_FIBER_TSAN
#define CATCH 0
#else
#define CATCH 1
#endif

void fk_faults_catch(void) {
    pthread_mutex_lock(&lock);
    if (users++ == 0 && CATCH) {
        struct sigaction action;
        memset(&action, 0, sizeof action);
        action.sa_sigaction = on_signal;
        /* NODEFER: the handler leaves by a switch, and nothing else would unblock the signal. */
        action.sa_flags = SA_SIGINFO | SA_ONSTACK | SA_NODEFER;
        for (size_t i = 0; i < NUM_CAUGHT; ++i) {
            sigaction(caught[i], NULL, &previous[i]);
            sigaction(caught[i], &action, NULL);
        }
    }
    pthread_mutex_unlock(&lock);
}

void fk_faults_release(void) {
    pthread_mutex_lock(&lock);
    if (--users == 0 && CATCH)
        for (size_t i = 0; i < NUM_CAUGHT; ++i)
            sigaction(caught[i], &previous[i], NULL);
    pthread_mutex_unlock(&lock);
}

fk_status fk_faults_enter(fk_fault_stack *stack, fk_error *err) {
    stack->memory = malloc(STACK_BYTES);
    if (!stack->memory) return fk_fail(err, FK_NO_MEMORY, "emulator: no memory for a signal stack");
    const stack_t ours = {.ss_sp = stack->memory, .ss_flags = 0, .ss_size = STACK_BYTES};
    sigaltstack(&ours, &stack->saved);
    return FK_OK;
}

void fk_faults_leave(fk_fault_stack *stack) {
    if (!stack->memory) return;
    sigaltstack(&stack->saved, NULL);
    free(stack->memory);
}

fk_status fk_fault_describe(const fk_block *block, fk_error *err) {
    const char *b = block->name;
    const uint32_t t = block->current->thread;
    if (block->signal == SIGFPE) return fk_fail(err, FK_LAUNCH_FAILED, "%s thread %u: integer division by zero", b, t);
    const uintptr_t address = block->signal_address;
    if (address == UINTPTR_MAX) /* the CPU does not say where */
        return fk_fail(err, FK_LAUNCH_FAILED, "%s thread %u: misaligned access, or an address that cannot exist", b, t);
    if (fk_block_overflowed(block, address))
        return fk_fail(err, FK_LAUNCH_FAILED, "%s thread %u: stack overflow", b, t);
    char where[160];
    fk_emu_describe_address(address, where, sizeof where);
    return fk_fail(err, FK_LAUNCH_FAILED, "%s thread %u touched address 0x%llx, %s", b, t, (unsigned long long)address,
                   where);
}
