/* The search on a device that is not there: its clock is what the acts cost, its times are known. */
#include "runtime/tune_search.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { MOST = 40 };

typedef struct fake {
    double now;         /* ms */
    double us[MOST];    /* true times */
    double compile_ms;  /* of each, in a helper */
    double noise;       /* share, of a sample */
    double drift;       /* share by which everything slows down in a minute */
    double ready[MOST]; /* when the helper ends; 0: none was started */
    double prepare_ms;
    bool bad[MOST], open[MOST], no_helpers, unprepared;
    int opened, closed, abandoned, finished, samples, running, most_running;
    int fail_at; /* the sample that loses the device, or what cannot be stored */
    uint64_t random;
} fake;

static double uniform(fake *f) {
    f->random = f->random * 6364136223846793005u + 1442695040888963407u;
    return (double)(f->random >> 40) * 0x1p-24 * 2 - 1;
}

static double now_ms(void *user) {
    fake *f = user;
    return f->now;
}
static fk_status prepare(void *user, fk_error *err) {
    fake *f = user;
    f->now += f->prepare_ms;
    return f->unprepared ? fk_fail(err, FK_NO_MEMORY, "planted") : FK_OK;
}
static bool start(void *user, size_t i) {
    fake *f = user;
    if (f->no_helpers) return false;
    assert_true(!f->open[i] && f->ready[i] <= 0);
    f->ready[i] = f->now + f->compile_ms;
    f->running++;
    f->most_running = f->running > f->most_running ? f->running : f->most_running;
    return true;
}
static bool is_built(void *user, size_t i, double wait_ms) {
    fake *f = user;
    if (f->now < f->ready[i]) f->now += fmin(wait_ms, f->ready[i] - f->now) + 0.01;
    if (f->now < f->ready[i]) return false;
    f->running--;
    return true;
}
static void abandon(void *user, size_t i) {
    fake *f = user;
    (void)i;
    f->running--;
    f->abandoned++;
}
static fk_status open_one(void *user, size_t i, fk_trial *trial, bool *good, fk_error *err) {
    fake *f = user;
    (void)err;
    f->now += f->no_helpers ? f->compile_ms : 5;
    f->opened += !f->bad[i];
    f->open[i] = *good = !f->bad[i];
    if (f->bad[i]) strcpy(trial->reason, "wrong: planted");
    return FK_OK;
}
static fk_status sample(void *user, size_t i, double *us, fk_error *err) {
    fake *f = user;
    assert_true(f->open[i]);
    if (++f->samples == f->fail_at) return fk_fail(err, FK_LAUNCH_FAILED, "planted");
    *us = f->us[i] * (1 + f->noise * uniform(f)) * (1 + f->drift * f->now / 6e4);
    f->now += fmax(2, *us * 1e-3);
    return FK_OK;
}
static void close_one(void *user, size_t i) {
    fake *f = user;
    assert_true(f->open[i]);
    f->open[i] = false;
    f->closed++;
}

static fk_status finish(void *user, size_t i, fk_trial *trial, fk_error *err) {
    fake *f = user;
    if (f->ready[i] <= 0) f->now += f->compile_ms;
    if (f->bad[i]) strcpy(trial->reason, "FK_COMPILE_FAILED: planted");
    return ++f->finished == f->fail_at ? fk_fail(err, FK_IO, "planted") : FK_OK;
}

static fk_tune_rig rig_of(fake *f) {
    return (fk_tune_rig){f, now_ms, prepare, start, is_built, abandon, open_one, sample, close_one, finish};
}

/* Times between 500 us and twice that; the fastest is `best`. */
static fake draw(uint64_t seed, size_t count, size_t best) {
    fake f = {.compile_ms = 1500, .noise = 0.01, .random = seed};
    for (size_t i = 0; i < count; i++)
        f.us[i] = 510 * (1 + 0.5 * (1 + uniform(&f)));
    f.us[best] = 500;
    return f;
}

static const fk_tune_settings usual = {
    .budget_ms = 60000, .jobs = 4, .first_round = 4, .last_samples = 32, .watch = NULL, .user = NULL};

static const fk_trial *fastest(const fk_trial *t, size_t count) {
    const fk_trial *best = NULL;
    for (size_t i = 0; i < count; i++)
        if (t[i].state == FK_TRIAL_TIMED && (!best || t[i].us < best->us)) best = &t[i];
    return best;
}

static fk_status search(fake *f, const fk_tune_settings *s, fk_trial *t, size_t count, fk_error *err) {
    const fk_tune_rig rig = rig_of(f);
    memset(t, 0, count * sizeof *t);
    const fk_status status = fk_tune_search(&rig, s, t, count, err);
    assert_int_equal(f->opened, f->closed); /* nothing stays open, no helper runs on */
    assert_int_equal(f->running, 0);
    return status;
}

/* Within 2 % of the fastest there is, whatever its place in the model's order, in a noisy world. */
static void finds_the_fastest(void **state) {
    (void)state;
    fk_trial t[MOST];
    int exact = 0;
    for (uint64_t seed = 0; seed < 200; seed++) {
        const size_t count = 2 + seed % 23, best = (size_t)(seed * 7) % count;
        fake f = draw(seed, count, best);
        f.drift = seed % 3 == 0 ? 0.3 : 0; /* a throttling clock */
        assert_int_equal(search(&f, &usual, t, count, NULL), FK_OK);
        const fk_trial *found = fastest(t, count);
        assert_non_null(found);
        const double us = f.us[found - t];
        if (us > 1.02 * 500) fail_msg("seed %d: took %g us, the fastest has 500", (int)seed, us);
        exact += found == &t[best];
        assert_true(f.now < usual.budget_ms);
        for (size_t i = 0; i < count; i++)
            assert_true(t[i].state == FK_TRIAL_TIMED && t[i].samples > 0);
        assert_true(t[0].samples >= found->samples / 2); /* the model's choice stays for comparison */
    }
    assert_true(exact > 180);
}

/* What is dropped early was timed on a faster chip, and is not the faster for it. */
static void tells_times_of_one_clock(void **state) {
    (void)state;
    for (uint64_t seed = 1; seed <= 20; seed++) {
        fk_trial trials[12] = {0};
        fk_error err;
        fake f = draw(seed, 12, 7);
        f.us[3] = 515, f.noise = 0.001, f.compile_ms = 1, f.drift = 20;
        const fk_tune_rig rig = rig_of(&f);
        assert_int_equal(fk_tune_search(&rig, &usual, trials, 12, &err), FK_OK);
        assert_ptr_equal(fastest(trials, 12), &trials[7]);
        for (size_t i = 0; i < 12; i++)
            if (trials[i].state == FK_TRIAL_TIMED && trials[i].samples >= usual.first_round)
                assert_true(fabs(trials[i].us / trials[7].us - f.us[i] / 500) < 0.02);
    }
}

/* Halving spends its samples on what is fast. */
static void spends_less_than_timing_all(void **state) {
    (void)state;
    fk_trial t[MOST];
    fake f = draw(3, 24, 11), all = draw(3, 24, 11);
    fk_tune_settings patient = usual;
    patient.keep_all = true;
    f.compile_ms = all.compile_ms = 1;
    assert_int_equal(search(&f, &usual, t, 24, NULL), FK_OK);
    assert_ptr_equal(fastest(t, 24), &t[11]);
    assert_int_equal(search(&all, &patient, t, 24, NULL), FK_OK);
    assert_ptr_equal(fastest(t, 24), &t[11]);
    assert_true(f.samples < all.samples * 2 / 3);
}

static void keeps_the_budget(void **state) {
    (void)state;
    static const double budgets[] = {100, 2000, 5000, 20000};
    fk_trial t[MOST];
    for (size_t n = 0; n < 4; n++) {
        fk_tune_settings s = usual;
        s.budget_ms = budgets[n];
        fake f = draw(n, 24, 20);
        assert_int_equal(search(&f, &s, t, 24, NULL), FK_OK);
        /* At least the model's choice is timed; an act that is under way is ended. */
        assert_true(t[0].state == FK_TRIAL_TIMED && t[0].samples > 0);
        assert_true(f.now < budgets[n] + f.compile_ms + 200);
        for (size_t i = 0; i < 24; i++)
            assert_true(t[i].state == FK_TRIAL_TIMED || (t[i].state == FK_TRIAL_SKIPPED && t[i].reason[0]));
    }
}

static void compiles_ahead(void **state) {
    (void)state;
    fk_trial t[MOST];
    fake f = draw(1, 16, 3), alone = draw(1, 16, 3);
    assert_int_equal(search(&f, &usual, t, 16, NULL), FK_OK);
    assert_int_equal(f.most_running, 4);
    alone.no_helpers = true;
    assert_int_equal(search(&alone, &usual, t, 16, NULL), FK_OK);
    assert_ptr_equal(fastest(t, 16), &t[3]);
    assert_true(alone.now > f.now + 10 * f.compile_ms);
    fk_tune_settings s = usual;
    s.jobs = 0;
    fake none = draw(1, 16, 3);
    none.no_helpers = true;
    assert_int_equal(search(&none, &s, t, 16, NULL), FK_OK);
    assert_ptr_equal(fastest(t, 16), &t[3]);
}

/* What is timed is drawn while the first plans are compiled. */
static void prepares_beside_the_compiler(void **state) {
    (void)state;
    fk_trial t[MOST];
    fk_error err;
    fake f = draw(1, 4, 3), quick = draw(1, 4, 3);
    f.prepare_ms = f.compile_ms;
    assert_int_equal(search(&quick, &usual, t, 4, NULL), FK_OK);
    assert_int_equal(search(&f, &usual, t, 4, NULL), FK_OK);
    assert_true(f.now < quick.now + f.prepare_ms / 2);
    fake none = draw(1, 4, 3);
    none.unprepared = true;
    assert_int_equal(search(&none, &usual, t, 4, &err), FK_NO_MEMORY);
    assert_string_equal(err.text, "planted");
    assert_true(none.opened == 0 && none.abandoned == 4);
}

static void compiles_only(void **state) {
    (void)state;
    fk_trial t[MOST] = {0};
    fake f = draw(1, 16, 3);
    const fk_tune_rig rig = rig_of(&f);
    assert_int_equal(fk_tune_compile(&rig, &usual, t, 16, NULL), FK_OK);
    assert_true(f.opened == 0 && f.samples == 0 && f.running == 0 && f.abandoned == 0 && f.most_running == 4);
    assert_true(f.now >= 4 * f.compile_ms && f.now < 5 * f.compile_ms);
    fk_tune_settings s = usual;
    s.budget_ms = 2 * f.compile_ms;
    f = draw(1, 16, 3);
    memset(t, 0, sizeof t);
    assert_int_equal(fk_tune_compile(&rig, &s, t, 16, NULL), FK_OK);
    assert_true(f.running == 0 && f.abandoned > 0);
    assert_string_equal(t[0].reason, "it was to be compiled only");
    assert_string_equal(t[15].reason, "the budget ended before it was compiled");
    for (size_t i = 0; i < 16; i++)
        assert_int_equal(t[i].state, FK_TRIAL_SKIPPED);
    f = draw(1, 16, 3); /* here, one after another */
    f.no_helpers = f.bad[5] = true;
    memset(t, 0, sizeof t);
    assert_int_equal(fk_tune_compile(&rig, &usual, t, 16, NULL), FK_OK);
    assert_true(f.now >= 16 * f.compile_ms && f.finished == 16);
    assert_true(t[5].state == FK_TRIAL_REJECTED && t[6].state == FK_TRIAL_SKIPPED);
    assert_string_equal(t[5].reason, "FK_COMPILE_FAILED: planted");
    f = draw(1, 16, 3);
    f.fail_at = 2;
    memset(t, 0, sizeof t);
    assert_int_equal(fk_tune_compile(&rig, &usual, t, 16, NULL), FK_IO);
    assert_true(f.running == 0 && f.finished == 2);
}

static void rejects_with_a_reason(void **state) {
    (void)state;
    fk_trial t[MOST];
    fk_error err;
    fake f = draw(5, 8, 2);
    f.bad[0] = f.bad[2] = true; /* the model's choice, and what would be fastest */
    f.us[4] = 505;
    assert_int_equal(search(&f, &usual, t, 8, NULL), FK_OK);
    assert_ptr_equal(fastest(t, 8), &t[4]);
    assert_true(t[0].state == FK_TRIAL_REJECTED && t[2].state == FK_TRIAL_REJECTED);
    assert_string_equal(t[2].reason, "wrong: planted");
    fake odd = draw(5, 8, 2);
    odd.us[3] = NAN, odd.us[4] = 0, odd.us[5] = -1;
    assert_int_equal(search(&odd, &usual, t, 8, NULL), FK_OK);
    for (int i = 3; i < 6; i++)
        assert_true(t[i].state == FK_TRIAL_REJECTED && strncmp(t[i].reason, "time: ", 6) == 0);
    f = draw(5, 8, 2);
    memset(f.bad, 1, sizeof f.bad);
    assert_int_equal(search(&f, &usual, t, 8, &err), FK_CHECK_FAILED);
    assert_non_null(strstr(err.text, "wrong: planted"));
}

static void passes_on_what_is_nobodys_fault(void **state) {
    (void)state;
    fk_trial t[MOST];
    for (int at = 1; at < 200; at += 13) {
        fake f = draw(2, 10, 4);
        f.fail_at = at;
        assert_int_equal(search(&f, &usual, t, 10, NULL), FK_LAUNCH_FAILED);
    }
}

typedef struct audience {
    int calls, stop_at;
    size_t most_alive;
    double last_best;
} audience;

static int watch(void *user, const fk_tune_progress *p) {
    audience *a = user;
    assert_true(p->count == 24 && p->elapsed_ms >= 0 && p->num_alive <= p->count);
    if (p->best) a->last_best = p->best->us;
    a->most_alive = p->num_alive > a->most_alive ? p->num_alive : a->most_alive;
    return ++a->calls == a->stop_at;
}

static void tells_and_stops(void **state) {
    (void)state;
    fk_trial t[MOST];
    fk_tune_settings s = usual;
    audience a = {.stop_at = -1};
    s.watch = watch, s.user = &a;
    fake f = draw(9, 24, 7);
    assert_int_equal(search(&f, &s, t, 24, NULL), FK_OK);
    assert_true(a.calls > 5 && a.most_alive > 3 && fabs(a.last_best / 500 - 1) < 0.02);
    const double whole = f.now;
    a = (audience){.stop_at = 20};
    f = draw(9, 24, 7);
    assert_int_equal(search(&f, &s, t, 24, NULL), FK_OK);
    assert_true(f.now < whole && a.calls <= 21);
    const fk_trial *found = fastest(t, 24);
    assert_true(found && found->us > 0);
}

static void medians(void **state) {
    (void)state;
    double spread, odd[] = {3, 1, 2}, even[] = {4, 1, 2, 100}, one[] = {5};
    assert_true(fabs(fk_tune_median(odd, 3, &spread) - 2) < 1e-12 && fabs(spread - 0.5) < 1e-12);
    assert_true(fabs(fk_tune_median(even, 4, &spread) - 3) < 1e-12 && fabs(spread - 0.5) < 1e-12);
    assert_true(fabs(fk_tune_median(one, 1, &spread) - 5) < 1e-12 && spread <= 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(finds_the_fastest),
                                       cmocka_unit_test(tells_times_of_one_clock),
                                       cmocka_unit_test(spends_less_than_timing_all),
                                       cmocka_unit_test(keeps_the_budget),
                                       cmocka_unit_test(compiles_ahead),
                                       cmocka_unit_test(rejects_with_a_reason),
                                       cmocka_unit_test(passes_on_what_is_nobodys_fault),
                                       cmocka_unit_test(prepares_beside_the_compiler),
                                       cmocka_unit_test(compiles_only),
                                       cmocka_unit_test(tells_and_stops),
                                       cmocka_unit_test(medians)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
