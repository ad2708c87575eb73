/* Words of global memory that several blocks change at a time: sums, in no order, and what hands out work. Blocks run
 * on several OS threads, so all of it is atomic here, too. */
#include "engine.h"

#include <pthread.h>
#include <string.h>

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

unsigned int fk_atom_inc_u32(unsigned int *p, unsigned int limit) {
    check_word(p, 4, "atom_inc_u32");
    unsigned int old = __atomic_load_n(p, __ATOMIC_RELAXED);
    while (!__atomic_compare_exchange_n(p, &old, old >= limit ? 0 : old + 1, true, __ATOMIC_RELAXED, __ATOMIC_RELAXED))
        continue;
    return old;
}

/* Few hosts have it without a library: a lock between those that ask, and the first word last, by which others know. A
 * fault leaves the block, lock and all, and so must come before. */
void fk_cas_u64x2(unsigned long long *p, const unsigned long long *expected, const unsigned long long *desired) {
    static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
    check_word(p, 16, "cas_u64x2");
    __atomic_fetch_or(p, 0, __ATOMIC_RELAXED);
    __atomic_fetch_or(p + 1, 0, __ATOMIC_RELAXED);
    pthread_mutex_lock(&lock);
    if (__atomic_load_n(p, __ATOMIC_ACQUIRE) == expected[0] &&
        __atomic_load_n(p + 1, __ATOMIC_RELAXED) == expected[1]) {
        __atomic_store_n(p + 1, desired[1], __ATOMIC_RELAXED);
        __atomic_store_n(p, desired[0], __ATOMIC_RELEASE);
    }
    pthread_mutex_unlock(&lock);
}

unsigned long long fk_ld_acquire_u64(const unsigned long long *p) {
    check_word(p, 8, "ld_acquire_u64");
    return __atomic_load_n(p, __ATOMIC_ACQUIRE);
}

void fk_st_release_u64(unsigned long long *p, unsigned long long value) {
    check_word(p, 8, "st_release_u64");
    __atomic_store_n(p, value, __ATOMIC_RELEASE);
}

/* Read in a loop, while others work: all of them, and copies, go first. */
unsigned int fk_ld_acquire_u32(const unsigned int *p) {
    fk_block_poll(check_word(p, 4, "ld_acquire_u32"));
    return __atomic_load_n(p, __ATOMIC_ACQUIRE);
}

void fk_st_release_u32(unsigned int *p, unsigned int value) {
    check_word(p, 4, "st_release_u32");
    __atomic_store_n(p, value, __ATOMIC_RELEASE);
}
