/* Builds the fake libraries of this folder into a temporary directory, and runs cases in processes of their own: the
 * library keeps what it once opened, so each fake needs a fresh process. */
#ifndef FK_TESTS_FAKE_H
#define FK_TESTS_FAKE_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "flashkiln.h"
#include "scratch.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

static char fake_dir[256];

/** A spelling that is wrong is told on stderr: cases run in processes that have no assertions. */
static inline fk_problem parsed(const char *spelling) {
    fk_problem p = FK_PROBLEM_INIT;
    if (fk_problem_parse(spelling, &p)) fprintf(stderr, "%s\n", fk_last_error());
    return p;
}

/** Compiles fake/NAME.c with `flags` to fake_dir/OUT. */
static inline void fake_build(const char *name, const char *flags, const char *out) {
    char command[2000];
    const char *cc = getenv("CC");
    snprintf(command, sizeof command, "%s -shared -fPIC -O1 -o %s/%s %s %s/tests/runtime/fake/%s.c", cc ? cc : "cc",
             fake_dir, out, flags, FK_SOURCE_DIR, name);
    assert_int_equal(system(command), 0);
}

/** Points an environment variable at fake_dir/FILE. */
static inline void fake_use(const char *variable, const char *file) {
    char path[300];
    snprintf(path, sizeof path, "%s/%s", fake_dir, file);
    setenv(variable, path, 1);
}

static inline int fake_start(void **state) {
    (void)state;
    return scratch_make(fake_dir, sizeof fake_dir) ? 0 : -1;
}

static inline int fake_stop(void **state) {
    (void)state;
    return scratch_remove(fake_dir) ? 0 : -1;
}

/** Runs `body` in a child; it returns null, or what is wrong. */
static inline void fake_run(const char *(*body)(void)) {
    fflush(NULL);
    const pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        const char *wrong = body();
        if (wrong) fprintf(stderr, "%s\n", wrong);
        fflush(NULL);
        _exit(wrong != NULL);
    }
    int status = 0;
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_int_equal(status, 0);
}

/** The first expression that is false, as text. */
#define EXPECT(condition)                                                                                              \
    do {                                                                                                               \
        if (!(condition)) return "false: " #condition;                                                                 \
    } while (0)

#endif
