/* The store of kernels that the tests of a file share: set-up and tear-down of their group. */
#ifndef FK_TESTS_STORE_H
#define FK_TESTS_STORE_H

#include "scratch.h"

static char store_dir[256];

static inline int make_store(void **state) {
    (void)state;
    return scratch_make(store_dir, sizeof store_dir) ? 0 : -1;
}

/** FLASHKILN_TUNING, with which one kernel serves all sizes, is unset. */
static inline int make_sized_store(void **state) {
    unsetenv("FLASHKILN_TUNING");
    return make_store(state);
}

static inline int remove_store(void **state) {
    (void)state;
    return scratch_remove(store_dir) ? 0 : -1;
}

#endif
