/* A folder of a test's own, in $TMPDIR or /tmp. */
#ifndef FK_TESTS_SCRATCH_H
#define FK_TESTS_SCRATCH_H

#include <ftw.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>

/** Makes the folder and writes its path. False, with errno: it cannot be made. */
static inline bool scratch_make(char *path, size_t size) {
    const char *base = getenv("TMPDIR");
    snprintf(path, size, "%.200s/fk_test_XXXXXX", base && *base ? base : "/tmp");
    return mkdtemp(path) != NULL;
}

static inline int scratch_remove_one(const char *path, const struct stat *s, int kind, struct FTW *at) {
    (void)s, (void)kind, (void)at;
    return remove(path);
}

/** Removes the folder and all that is in it, also where a test took its permissions away. */
static inline bool scratch_remove(const char *path) {
    return chmod(path, 0700) == 0 && nftw(path, scratch_remove_one, 16, FTW_DEPTH | FTW_PHYS) == 0;
}

#endif
