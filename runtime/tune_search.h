/* The search for the fastest of some plans within a budget of wall time. It knows no device: what compiles, checks and
 * times is given to it, so that tests give it one whose times they know. */
#ifndef FK_RUNTIME_TUNE_SEARCH_H
#define FK_RUNTIME_TUNE_SEARCH_H

#include "gen/error.h"

#include <stdbool.h>

typedef struct fk_tune_rig {
    void *user;
    double (*now_ms)(void *user);
    /** Draws what trials are checked and timed on: called once, when the first helpers are at work, before `open`. */
    fk_status (*prepare)(void *user, fk_error *err);
    /** Begins to compile trial i beside the search; false: that cannot be had, and `open` will compile it. */
    bool (*start)(void *user, size_t i);
    /** Whether what `start` began has ended; waits up to `wait_ms` for it. */
    bool (*is_built)(void *user, size_t i, double wait_ms);
    /** Ends what `start` began, and forgets it. */
    void (*abandon)(void *user, size_t i);
    /** Loads and checks trial i, and runs it once. Failures fill trial->reason; only one that is not the trial's
     * (FK_NO_MEMORY, a lost device) is returned. */
    fk_status (*open)(void *user, size_t i, fk_trial *trial, bool *good, fk_error *err);
    /** One timing, in microseconds of a launch. */
    fk_status (*sample)(void *user, size_t i, double *us, fk_error *err);
    void (*close)(void *user, size_t i);
    /** Compiles trial i here, unless what `start` began did: fills trial->reason if it has failed.
     *  @return FK_IO: nothing can be stored */
    fk_status (*finish)(void *user, size_t i, fk_trial *trial, fk_error *err);
} fk_tune_rig;

typedef struct fk_tune_settings {
    double budget_ms;
    int jobs;         /* compiled at a time; 0: each by `open` */
    int first_round;  /* samples of each in the first round; twice as many in each one after */
    int last_samples; /* of those that are left in the end */
    bool keep_all;    /* nothing is dropped between rounds, but for what was far off at first sight */
    fk_tune_watch watch;
    void *user;
} fk_tune_settings;

/** Fills state, times and reasons of `trials`, which are in the order in which they are to be tried. Compiles ahead of
 *  what is timed, times all that are alive in turns, and (without keep_all) drops the slower half round after round;
 * the first trial stays to the end, as what the others are compared with. Trials keep their order.
 *  @return FK_NO_MEMORY; FK_CHECK_FAILED: none could be timed; what the rig returns */
fk_status fk_tune_search(const fk_tune_rig *rig, const fk_tune_settings *settings, fk_trial *trials, size_t count,
                         fk_error *err);
/** Compiles all `trials`, as far as the budget lasts, and skips them; those that do not compile it rejects. Needs of
 * the rig no more than now_ms, start, is_built, abandon and finish. @return FK_NO_MEMORY; what `finish` returns */
fk_status fk_tune_compile(const fk_tune_rig *rig, const fk_tune_settings *settings, fk_trial *trials, size_t count,
                          fk_error *err);
/** Median of `count` values, at least 1, which it sorts; and the median deviation from it as a share of it. */
double fk_tune_median(double *values, size_t count, double *spread);

#endif
