/* What the generator's tests share. */
#ifndef FK_TESTS_GEN_TEST_H
#define FK_TESTS_GEN_TEST_H

#include "gen/error.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include <sys/stat.h>
#include <unistd.h>

/* `part` must occur in `text`; shows both if not. */
#define assert_message(text, part)                                                                                     \
    do {                                                                                                               \
        if (!strstr(text, part)) fail_msg("expected \"%s\" in:\n%s", part, text);                                      \
    } while (0)

/* splitmix64: tests that draw cases print their seed. */
static inline uint64_t next_random(uint64_t *state) {
    uint64_t z = *state += 0x9e3779b97f4a7c15u;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}
static inline int64_t random_below(uint64_t *state, int64_t limit) {
    return (int64_t)(next_random(state) % (uint64_t)limit);
}

/* A template_dir of a test's own. */
typedef struct temp_dir {
    char path[64];
} temp_dir;

static inline temp_dir temp_dir_create(void) {
    temp_dir dir = {"/tmp/flashkiln_test_XXXXXX"};
    assert_non_null(mkdtemp(dir.path));
    return dir;
}

/* Writes "mask/causal.lua" with its folder. */
static inline void temp_dir_write(const temp_dir *dir, const char *name, const char *text) {
    char path[256];
    snprintf(path, sizeof path, "%s/%s", dir->path, name);
    for (char *slash = strchr(path + strlen(dir->path) + 1, '/'); slash; slash = strchr(slash + 1, '/')) {
        *slash = 0;
        mkdir(path, 0700);
        *slash = '/';
    }
    FILE *file = fopen(path, "wb");
    assert_non_null(file);
    fputs(text, file);
    assert_int_equal(fclose(file), 0);
}

static inline void temp_dir_remove(const temp_dir *dir) {
    char command[128];
    snprintf(command, sizeof command, "rm -r '%s'", dir->path);
    assert_int_equal(system(command), 0);
}

#endif
