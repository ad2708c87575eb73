/* The table of kernels: one build for many askers, errors that reach all of them, and lookups under a microsecond. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "runtime/clock.h"
#include "runtime/object.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define THREADS 8

typedef struct counter {
    int builds; /* atomic */
    bool fail;
    fk_kernel kernel[4]; /* the n-th build returns the n-th */
} counter;

static fk_status build(void *user, const fk_problem *canonical, fk_kernel **out, fk_error *err) {
    counter *c = user;
    const int n = __atomic_fetch_add(&c->builds, 1, __ATOMIC_RELAXED);
    usleep(20000); /* long enough for all threads to arrive */
    if (c->fail) return fk_fail(err, FK_COMPILE_FAILED, "build %d failed", n);
    assert_int_equal(canonical->head_dim_v, canonical->head_dim); /* canonical: the default is filled in */
    *out = &c->kernel[n];
    return FK_OK;
}

static void nothing(fk_kernel *kernel) {
    (void)kernel;
}

typedef struct asker {
    pthread_t thread;
    fk_table *table;
    counter *c;
    fk_problem problem;
    fk_status status;
    fk_kernel *kernel;
    fk_error err;
} asker;

static void *ask(void *user) {
    asker *a = user;
    a->status = fk_table_find(a->table, &a->problem, 0, build, a->c, &a->kernel, &a->err);
    return NULL;
}

static void ask_all(asker *askers, fk_table *table, counter *c) {
    for (int i = 0; i < THREADS; i++) {
        fk_problem p = FK_PROBLEM_INIT;
        p.head_dim = 64;
        p.head_dim_v = i % 2 ? 64 : 0; /* two ways to ask for the same */
        askers[i] = (asker){.table = table, .c = c, .problem = p};
        assert_int_equal(pthread_create(&askers[i].thread, NULL, ask, &askers[i]), 0);
    }
    for (int i = 0; i < THREADS; i++)
        assert_int_equal(pthread_join(askers[i].thread, NULL), 0);
}

static void one_build_for_all(void **state) {
    (void)state;
    fk_table table = {0};
    counter c = {0};
    asker askers[THREADS];
    fk_table_init(&table);
    ask_all(askers, &table, &c);
    assert_int_equal(c.builds, 1);
    for (int i = 0; i < THREADS; i++) {
        assert_int_equal(askers[i].status, FK_OK);
        assert_ptr_equal(askers[i].kernel, &c.kernel[0]);
    }
    fk_problem other = FK_PROBLEM_INIT;
    fk_kernel *kernel;
    other.head_dim = 72;
    assert_int_equal(fk_table_find(&table, &other, 0, build, &c, &kernel, NULL), FK_OK);
    assert_ptr_equal(kernel, &c.kernel[1]);
    fk_table_clear(&table, nothing);
}

static void failure_reaches_all_and_is_forgotten(void **state) {
    (void)state;
    fk_table table = {0};
    counter c = {.fail = true};
    asker askers[THREADS];
    fk_table_init(&table);
    ask_all(askers, &table, &c);
    assert_in_range(c.builds, 1, THREADS); /* a thread that came late starts another one */
    for (int i = 0; i < THREADS; i++) {
        assert_int_equal(askers[i].status, FK_COMPILE_FAILED);
        assert_non_null(strstr(askers[i].err.text, "failed"));
    }
    c = (counter){0};
    ask_all(askers, &table, &c);
    assert_int_equal(c.builds, 1);
    assert_int_equal(askers[0].status, FK_OK);
    fk_table_clear(&table, nothing);
}

static void bad_problems_are_refused(void **state) {
    (void)state;
    fk_table table = {0};
    counter c = {0};
    fk_kernel *kernel;
    fk_error err;
    fk_problem p = FK_PROBLEM_INIT;
    fk_table_init(&table);
    p.head_dim = 12;
    assert_int_equal(fk_table_find(&table, &p, 0, build, &c, &kernel, &err), FK_BAD_PROBLEM);
    assert_non_null(strstr(err.text, "12"));
    p.head_dim = 64, p.num_masks = 1000000; /* must not be hashed */
    assert_int_equal(fk_table_find(&table, &p, 0, build, &c, &kernel, &err), FK_BAD_PROBLEM);
    p.num_masks = 0, p.struct_size = 3;
    assert_int_not_equal(fk_table_find(&table, &p, 0, build, &c, &kernel, &err), FK_OK);
    assert_int_equal(c.builds, 0);
    fk_table_clear(&table, nothing);
}

static void known_problems_are_found_fast(void **state) {
    (void)state;
    static const char *const spellings[] = {"fwd fp16 d64", "fwd bf16 d128 causal",
                                            "fwd fp16 d64 keep=\"k <= q\" causal"};
    enum { ROUNDS = 100000 };
    fk_table table = {0};
    counter c = {0};
    fk_table_init(&table);
    for (size_t i = 0; i < sizeof spellings / sizeof *spellings; i++) {
        fk_problem p;
        fk_kernel *kernel = NULL;
        assert_int_equal(fk_problem_parse(spellings[i], &p), FK_OK);
        assert_int_equal(fk_table_find(&table, &p, 0, build, &c, &kernel, NULL), FK_OK);
        const double begin = fk_now_ms();
        for (int round = 0; round < ROUNDS; round++) {
            fk_kernel *again = NULL;
            assert_int_equal(fk_table_find(&table, &p, 0, build, &c, &again, NULL), FK_OK);
            if (again != kernel) fail();
        }
        const double ns = 1e6 * (fk_now_ms() - begin) / ROUNDS;
        print_message("dispatch of \"%s\": %.0f ns\n", spellings[i], ns);
        assert_true(ns < 20000);
    }
    assert_int_equal(c.builds, 3);
    fk_table_clear(&table, nothing);
}

static void aliases_are_capped(void **state) {
    (void)state;
    fk_table table = {0};
    counter c = {0};
    fk_kernel *kernel;
    fk_table_init(&table);
    for (int i = 0; i < 6000; i++) { /* the same problem with other bytes behind the string's zero */
        fk_problem p = FK_PROBLEM_INIT;
        p.head_dim = 64, p.num_masks = 1;
        strcpy(p.mask[0].expr, "k <= q");
        memcpy(p.mask[0].expr + 100, &i, sizeof i);
        assert_int_equal(fk_table_find(&table, &p, 0, build, &c, &kernel, NULL), FK_OK);
    }
    assert_int_equal(c.builds, 1);
    assert_in_range(table.num_aliases, 1, 5000);
    fk_table_clear(&table, nothing);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(one_build_for_all),        cmocka_unit_test(failure_reaches_all_and_is_forgotten),
        cmocka_unit_test(bad_problems_are_refused), cmocka_unit_test(known_problems_are_found_fast),
        cmocka_unit_test(aliases_are_capped),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
