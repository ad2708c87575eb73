/* Two phases. While helpers compile, what is ready is checked and timed a little: that prunes what is far off. Then
 * rounds of interleaved timings, each of twice the samples, after which the slower half is dropped. Interleaving keeps
 * a drifting clock from favouring whoever ran first. */
#include "tune_search.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_SAMPLES = 256, PRELIMINARY = 3, MEANWHILE = 16 };
static const double FAR_OFF = 1.5;       /* times the best: pruned while others compile */
static const double SAME = 0.005;        /* share within which two plans are not told apart */
static const double COMPILE_SHARE = 0.6; /* of the budget, after which nothing more is begun */
static const double WATCH_MS = 200;

typedef enum phase { WAITING, STARTED, ALIVE, OUT } phase;

typedef struct contender {
    phase phase;
    bool in_rounds; /* its samples were taken in turns with those of the others */
    int num_samples;
    double sample[MAX_SAMPLES];
} contender;

typedef struct search {
    const fk_tune_rig *rig;
    const fk_tune_settings *settings;
    fk_trial *trials;
    contender *contenders;
    size_t count;
    double begin, watched;
    bool stopped;
} search;

/* ---- statistics ---- */

static int by_value(const void *a, const void *b) {
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double middle(double *values, size_t count) {
    qsort(values, count, sizeof *values, by_value);
    return (values[(count - 1) / 2] + values[count / 2]) / 2;
}

double fk_tune_median(double *values, size_t count, double *spread) {
    const double median = middle(values, count);
    for (size_t i = 0; i < count; i++)
        values[i] = fabs(values[i] - median);
    *spread = median > 0 ? middle(values, count) / median : 0;
    return median;
}

/* Of its first samples. */
static double median_of(const contender *c, int num_samples, double *spread) {
    double sorted[MAX_SAMPLES];
    memcpy(sorted, c->sample, (size_t)num_samples * sizeof *sorted);
    return fk_tune_median(sorted, (size_t)num_samples, spread);
}

static void update(search *s, size_t i) {
    const contender *c = &s->contenders[i];
    fk_trial *t = &s->trials[i];
    if (c->num_samples == 0 || t->state == FK_TRIAL_REJECTED) return;
    t->us = median_of(c, c->num_samples, &t->spread);
    t->samples = c->num_samples;
    t->state = FK_TRIAL_TIMED;
}

/* ---- the clock ---- */

static double elapsed(const search *s) {
    return s->rig->now_ms(s->rig->user) - s->begin;
}

static const fk_trial *best_of(const search *s) {
    const fk_trial *best = NULL;
    for (size_t i = 0; i < s->count; i++)
        if (s->trials[i].state == FK_TRIAL_TIMED && (!best || s->trials[i].us < best->us)) best = &s->trials[i];
    return best;
}

static size_t num_in(const search *s, phase which) {
    size_t count = 0;
    for (size_t i = 0; i < s->count; i++)
        count += s->contenders[i].phase == which;
    return count;
}

static void tell(search *s, bool now) {
    const double at = elapsed(s);
    if (!s->settings->watch || (!now && at - s->watched < WATCH_MS)) return;
    s->watched = at;
    fk_tune_progress p = {.trials = s->trials,
                          .count = s->count,
                          .num_alive = num_in(s, ALIVE),
                          .best = best_of(s),
                          .elapsed_ms = at,
                          .budget_ms = s->settings->budget_ms};
    for (size_t i = 0; i < s->count; i++)
        p.num_rejected += s->trials[i].state == FK_TRIAL_REJECTED;
    if (s->settings->watch(s->settings->user, &p)) s->stopped = true;
}

static bool is_over(const search *s) {
    return s->stopped || elapsed(s) >= s->settings->budget_ms;
}

/* ---- single acts ---- */

static void drop(search *s, size_t i) {
    if (s->contenders[i].phase == ALIVE) s->rig->close(s->rig->user, i);
    s->contenders[i].phase = OUT;
}

static fk_status take_sample(search *s, size_t i, fk_error *err) {
    contender *c = &s->contenders[i];
    double us = 0;
    if (c->num_samples == MAX_SAMPLES) return FK_OK;
    const fk_status status = s->rig->sample(s->rig->user, i, &us, err);
    if (status != FK_OK) return status;
    if (us > 0 && isfinite(us)) {
        c->sample[c->num_samples++] = us;
        return FK_OK;
    }
    snprintf(s->trials[i].reason, sizeof s->trials[i].reason, "time: a launch took %g us", us);
    drop(s, i);
    s->trials[i].state = FK_TRIAL_REJECTED;
    return FK_OK;
}

/* One sample of each that is alive, in turns, `times` times; stops when the time is up, which one launch may take. */
static fk_status take_turns(search *s, int times, fk_error *err) {
    for (int n = 0; n < times && !is_over(s); n++)
        for (size_t i = 0; i < s->count && !is_over(s); i++) {
            if (s->contenders[i].phase != ALIVE) continue;
            const fk_status status = take_sample(s, i, err);
            if (status != FK_OK) return status;
            tell(s, false);
        }
    for (size_t i = 0; i < s->count; i++)
        if (s->contenders[i].phase == ALIVE) update(s, i);
    return FK_OK;
}

/* Helpers that compile meanwhile can only make a sample longer. */
static double fastest(const contender *c) {
    double least = INFINITY;
    for (int i = 0; i < c->num_samples; i++)
        least = fmin(least, c->sample[i]);
    return least;
}

static fk_status admit(search *s, size_t i, fk_error *err) {
    bool good = false;
    fk_trial *t = &s->trials[i];
    fk_status status = s->rig->open(s->rig->user, i, t, &good, err);
    if (status != FK_OK) return status;
    s->contenders[i].phase = good ? ALIVE : OUT;
    if (!good) {
        t->state = FK_TRIAL_REJECTED;
        return FK_OK;
    }
    for (int n = 0; n < PRELIMINARY && s->contenders[i].phase == ALIVE && status == FK_OK; n++) {
        status = take_sample(s, i, err);
        tell(s, false);
        if (is_over(s)) break;
    }
    update(s, i);
    const fk_trial *best = best_of(s);
    if (status == FK_OK && i > 0 && best && fastest(&s->contenders[i]) > FAR_OFF * best->us) drop(s, i);
    return status;
}

/* ---- phase one: compile, check, a first look ---- */

/* Begins what helpers have room for. What no helper can take is opened, and so compiled, here, in its turn. */
static void start_some(search *s) {
    size_t running = num_in(s, STARTED);
    for (size_t i = 0; i < s->count && running < (size_t)s->settings->jobs; i++) {
        if (s->contenders[i].phase != WAITING) continue;
        if (!s->rig->start(s->rig->user, i)) return;
        s->contenders[i].phase = STARTED;
        running++;
    }
}

/* The first that is built, or count. */
static size_t find_built(const search *s, double wait_ms) {
    for (size_t i = 0; i < s->count; i++) {
        if (s->contenders[i].phase != STARTED) continue;
        if (s->rig->is_built(s->rig->user, i, wait_ms)) return i;
        wait_ms = 0; /* for the first alone */
    }
    return s->count;
}

static size_t find_waiting(const search *s) {
    size_t i = 0;
    while (i < s->count && s->contenders[i].phase != WAITING)
        i++;
    return i;
}

static int least_samples(const search *s) {
    int least = MAX_SAMPLES;
    for (size_t i = 0; i < s->count; i++)
        if (s->contenders[i].phase == ALIVE && s->contenders[i].num_samples < least)
            least = s->contenders[i].num_samples;
    return least;
}

/* What is not compiled when time is up. */
static void give_up(search *s) {
    for (size_t i = 0; i < s->count; i++) {
        contender *c = &s->contenders[i];
        if (c->phase == STARTED) s->rig->abandon(s->rig->user, i);
        if (c->phase != STARTED && c->phase != WAITING) continue;
        c->phase = OUT;
        s->trials[i].state = FK_TRIAL_SKIPPED;
        snprintf(s->trials[i].reason, sizeof s->trials[i].reason, "the budget ended before it was compiled");
    }
}

static fk_status compile_all(search *s, fk_error *err) {
    start_some(s);
    fk_status status = s->rig->prepare(s->rig->user, err);
    while (status == FK_OK && !s->stopped) {
        const bool late = elapsed(s) > COMPILE_SHARE * s->settings->budget_ms && best_of(s);
        if (late) break;
        start_some(s);
        const bool helped = num_in(s, STARTED) > 0, idle = least_samples(s) >= MEANWHILE;
        const size_t built = helped ? find_built(s, idle ? 20 : 0) : find_waiting(s);
        if (built < s->count)
            status = admit(s, built, err);
        else if (!helped)
            break;
        else if (!idle)
            status = take_turns(s, 1, err);
        tell(s, false);
    }
    give_up(s);
    return status;
}

/* ---- phase two: halving ---- */

/* The slower half goes, but for what cannot be told from the best yet, and the first trial. */
static void halve(search *s) {
    double times[256];
    size_t alive = 0;
    for (size_t i = 0; i < s->count && alive < 256; i++)
        if (s->contenders[i].phase == ALIVE) times[alive++] = s->trials[i].us;
    if (alive < 3) return;
    qsort(times, alive, sizeof *times, by_value);
    const double limit = fmax(times[(alive - 1) / 2], times[0] * (1 + SAME));
    for (size_t i = 1; i < s->count; i++)
        if (s->contenders[i].phase == ALIVE && s->trials[i].us > limit) drop(s, i);
}

static fk_status run_rounds(search *s, fk_error *err) {
    fk_status status = FK_OK;
    int samples = s->settings->first_round;
    const int enough = s->settings->last_samples < MAX_SAMPLES ? s->settings->last_samples : MAX_SAMPLES;
    if (is_over(s)) return FK_OK;
    for (size_t i = 0; i < s->count; i++)
        if (s->contenders[i].phase == ALIVE) /* samples before were not in turns */
            s->contenders[i].num_samples = 0, s->contenders[i].in_rounds = true;
    while (status == FK_OK && !is_over(s) && num_in(s, ALIVE) && least_samples(s) < enough) {
        status = take_turns(s, samples < enough - least_samples(s) ? samples : enough - least_samples(s), err);
        if (!is_over(s) && !s->settings->keep_all) halve(s);
        samples *= 2;
    }
    return status;
}

/* The chip slows down while it is busy. So what was dropped, when it may have been faster, is told as a multiple of the
 * winner in the turns that both took. */
static void compare_with_winner(search *s) {
    const contender *winner = NULL;
    const fk_trial *best = NULL;
    double spread;
    for (size_t i = 0; i < s->count; i++)
        if (s->contenders[i].phase == ALIVE && s->contenders[i].in_rounds && (!best || s->trials[i].us < best->us))
            winner = &s->contenders[i], best = &s->trials[i];
    for (size_t i = 0; winner && i < s->count; i++) {
        const contender *c = &s->contenders[i];
        if (c->phase == OUT && c->in_rounds && c->num_samples && s->trials[i].state == FK_TRIAL_TIMED)
            s->trials[i].us *= best->us / median_of(winner, c->num_samples, &spread);
    }
}

/* ---- both ---- */

static fk_status begin(search *s, fk_error *err) {
    s->contenders = calloc(s->count ? s->count : 1, sizeof *s->contenders);
    if (!s->contenders) return fk_fail(err, FK_NO_MEMORY, "no memory for the timings of %zu plans", s->count);
    s->begin = s->rig->now_ms(s->rig->user);
    return FK_OK;
}

fk_status fk_tune_compile(const fk_tune_rig *rig, const fk_tune_settings *settings, fk_trial *trials, size_t count,
                          fk_error *err) {
    search s = {.rig = rig, .settings = settings, .trials = trials, .count = count};
    fk_status status = begin(&s, err);
    if (status) return status;
    while (status == FK_OK && !is_over(&s)) {
        start_some(&s);
        const size_t i = num_in(&s, STARTED) ? find_built(&s, 20) : find_waiting(&s); /* no helper can be had */
        if (i == count && !num_in(&s, STARTED)) break;
        if (i < count) {
            fk_trial *t = &trials[i];
            s.contenders[i].phase = OUT;
            status = rig->finish(rig->user, i, t, err);
            t->state = t->reason[0] ? FK_TRIAL_REJECTED : FK_TRIAL_SKIPPED;
            if (!t->reason[0]) snprintf(t->reason, sizeof t->reason, "it was to be compiled only");
        }
        tell(&s, false);
    }
    give_up(&s);
    free(s.contenders);
    return status;
}

fk_status fk_tune_search(const fk_tune_rig *rig, const fk_tune_settings *settings, fk_trial *trials, size_t count,
                         fk_error *err) {
    search s = {.rig = rig, .settings = settings, .trials = trials, .count = count};
    fk_status status = begin(&s, err);
    if (status) return status;
    status = compile_all(&s, err);
    if (status == FK_OK) status = run_rounds(&s, err);
    compare_with_winner(&s);
    tell(&s, true);
    const fk_trial *best = best_of(&s);
    for (size_t i = 0; i < count; i++)
        drop(&s, i);
    free(s.contenders);
    if (status == FK_OK && !best)
        status = fk_fail(err, FK_CHECK_FAILED, "none of %zu plans could be timed; the first: %s", count,
                         count ? trials[0].reason : "there is none");
    return status;
}
