/* Words of global memory that several blocks touch at a time: sums without an order, and turns, by which a block waits
 * for earlier ones. A wait is a loop around ld_acquire_u32. Blocks start in order (fk_emu_options.in_order) and a
 * started one runs on, so a wait for an earlier block ends; what would not end is a fault. */
#include "engine.h"

#include <sched.h>
#include <string.h>
#include <time.h>

/* Equal loads by one lane after which nothing will change, if no other block runs meanwhile. */
#define MAX_LOADS_ALONE 10000u
/* Seconds for another block to get one tile done: few would do, but machines stall. */
#define MAX_SECONDS 120

static fk_block *check_word(const void *p, uintptr_t alignment, const char *what) {
    fk_block *block = fk_block_current();
    if ((uintptr_t)p % alignment != 0)
        fk_block_fault(block, "%s: global address %p is not %u-byte aligned", what, (void *)(uintptr_t)p,
                       (unsigned)alignment);
    return block;
}

static void add(float *p, float value) {
    uint32_t *word = (uint32_t *)(void *)p, old = __atomic_load_n(word, __ATOMIC_RELAXED), sum;
    do {
        float x;
        memcpy(&x, &old, sizeof x);
        x += value;
        memcpy(&sum, &x, sizeof sum);
    } while (!__atomic_compare_exchange_n(word, &old, sum, true, __ATOMIC_RELAXED, __ATOMIC_RELAXED));
}

void fk_red_add_f32(float *p, float value) {
    check_word(p, 4, "red_add_f32")->stats.global_add_bytes += 4;
    add(p, value);
}

void fk_red_add_f32x4(float *p, const float *value) {
    check_word(p, 16, "red_add_f32x4")->stats.global_add_bytes += 16;
    for (int i = 0; i < 4; i++)
        add(p + i, value[i]);
}

void fk_red_add_u64(unsigned long long *p, unsigned long long value) {
    check_word(p, 8, "red_add_u64")->stats.global_add_bytes += 8;
    __atomic_fetch_add(p, value, __ATOMIC_RELAXED);
}

static int64_t seconds(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec;
}

unsigned int fk_ld_acquire_u32(const unsigned int *p) {
    fk_block *block = check_word(p, 4, "ld_acquire_u32");
    fk_wait *wait = &block->current->wait;
    const unsigned int value = __atomic_load_n(p, __ATOMIC_ACQUIRE);
    if (wait->word != p || wait->value != value) {
        *wait = (fk_wait){p, value, 0, seconds()};
        return value;
    }
    const bool hopeless = block->alone && ++wait->loads > MAX_LOADS_ALONE;
    if (hopeless || seconds() - wait->since > MAX_SECONDS)
        fk_block_fault(block,
                       "deadlock: waits in ld_acquire_u32 for the word at %p, which stays %u; a block may wait "
                       "for earlier ones only",
                       (void *)(uintptr_t)p, value);
    if (atomic_load_explicit(block->stop, memory_order_relaxed))
        fk_block_fault(block, "waits in ld_acquire_u32 for a block that has faulted");
    fk_block_pass(block);
    sched_yield();
    return value;
}

void fk_st_release_u32(unsigned int *p, unsigned int value) {
    check_word(p, 4, "st_release_u32");
    __atomic_store_n(p, value, __ATOMIC_RELEASE);
}

void fk_red_release_add_u32(unsigned int *p, unsigned int value) {
    check_word(p, 4, "red_release_add_u32");
    __atomic_fetch_add(p, value, __ATOMIC_RELEASE);
}
