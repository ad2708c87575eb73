/* What the tests of expressions share: parsing that must succeed, text that must match, names with values. */
#ifndef FK_TESTS_GEN_EXPR_HELPERS_H
#define FK_TESTS_GEN_EXPR_HELPERS_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "expr_random.h"

#include <stdlib.h>

static const char *const NAMES[] = {"q", "k", "h", "diag", "on", "s", "t"};
enum { Q, K, H, DIAG, ON, S, T, NUM_NAMES };

/* The arrays of RANDOM_SYMBOLS: seen is true at every third index, id and w are within [-15, 5]. */
static inline double read_array(void *user, const char *array, const int64_t *index, int rank) {
    (void)user;
    if (array[0] == 's') return (double)(index[0] % 3 == 0);
    return (double)((index[0] % 11 * 7 + (rank == 2 ? index[1] % 11 : 0)) % 11) - 5;
}

static inline fk_expr_env env_of(const double *values) {
    return (fk_expr_env){NAMES, values, NUM_NAMES, read_array, NULL, false};
}

static inline const fk_expr *parse(fk_expr_pool *pool, const char *text) {
    const fk_expr *e = NULL;
    fk_error err = {0};
    if (fk_expr_parse(pool, text, RANDOM_SYMBOLS, NUM_RANDOM_SYMBOLS, &e, &err) != FK_OK) fail_msg("%s", err.text);
    return e;
}

static inline void assert_prints(const fk_expr *e, fk_expr_form form, const char *expected) {
    char *text = NULL;
    assert_int_equal(fk_expr_print(e, form, &text, NULL), FK_OK);
    assert_string_equal(text, expected);
    free(text);
}

typedef void point_check(const fk_expr *e, const double *values, void *user);

/* Calls `check` at every point of a box over q, k, h, diag and on. */
static inline void for_each_point(const fk_expr *e, const fk_interval *box, point_check *check, void *user) {
    double v[NUM_NAMES] = {[S] = 0.5, [T] = -1.5};
    for (v[Q] = box[Q].lo; v[Q] <= box[Q].hi; ++v[Q])
        for (v[K] = box[K].lo; v[K] <= box[K].hi; ++v[K])
            for (v[H] = box[H].lo; v[H] <= box[H].hi; ++v[H])
                for (v[DIAG] = box[DIAG].lo; v[DIAG] <= box[DIAG].hi; ++v[DIAG])
                    for (v[ON] = box[ON].lo; v[ON] <= box[ON].hi; ++v[ON])
                        check(e, v, user);
}

#endif
