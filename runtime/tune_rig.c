/* Helpers are forks that do nothing but compile into the store and leave: two threads of one process gain little, as
 * the compiler's front end runs one at a time, and a compiler that crashes or hangs takes its helper down alone. They
 * call no driver. */
#include "tune_rig.h"
#include "clock.h"
#include "compile.h"
#include "tune_check.h"
#include "tune_tail.h"

#include <errno.h>
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

enum { STORED = 0, NOT_COMPILED = 1, NOT_STORED = 2 }; /* a helper's exit codes */
enum { COMPILE_SECONDS = 120, MAX_BATCH = 200, HELPER_NICE = 10 /* who launches kernels goes first */ };
static const double SAMPLE_US = 2000; /* of launches in one timing: the events' resolution and the gaps vanish in it */
/* Share of the tensor cores' floor at nominal clocks below which a kernel cannot have done its work. */
static const double IMPLAUSIBLE = 0.4;

typedef struct slot {
    pid_t helper; /* 0: none, or no more */
    bool helped;  /* there was one, which ended by itself */
    int ended_by; /* the signal that ended the helper, or 0 */
    fk_kernel *kernel;
    int batch;
} slot;

struct fk_tune_device {
    fk_context *context;
    const fk_problem *problem;
    const fk_shape *shape;
    const fk_trial *trials;
    slot *slots;
    size_t count;
    fk_tune_data timed;
    fk_tune_check *check;
    fk_tune_tail tail;
    void *workspace, *event[2];
    size_t workspace_bytes;
    bool store_fails;  /* what helpers compile is lost */
    bool visits_known; /* else documents, say, may leave most tiles unvisited */
    char compiler[96];
};

/* ---- helpers ---- */

static double now_ms(void *user) {
    (void)user;
    return fk_now_ms();
}

static bool start(void *user, size_t i) {
    fk_tune_device *d = user;
    if (d->context->cache_mode != FK_CACHE_NORMAL || *fk_store_reason(d->context->store) || d->store_fails)
        return false;
    const pid_t pid = fk_compile_fork(d->context->store);
    if (pid < 0) return false;
    if (pid == 0) {
        fk_built built;
        setpgid(0, 0); /* a group, with which the compilers end that the emulator starts */
        signal(SIGALRM, SIG_DFL);
        alarm(COMPILE_SECONDS);
        setpriority(PRIO_PROCESS, 0, HELPER_NICE);
        if (fk_image_obtain(d->context, d->problem, &d->trials[i].plan, &built, NULL)) _exit(NOT_COMPILED);
        _exit(built.from_store || built.stored ? STORED : NOT_STORED);
    }
    setpgid(pid, pid); /* whoever of both is first */
    d->slots[i].helper = pid;
    return true;
}

static bool is_built(void *user, size_t i, double wait_ms) {
    fk_tune_device *d = user;
    slot *s = &d->slots[i];
    const double until = fk_now_ms() + wait_ms;
    while (s->helper) {
        int how = 0;
        const pid_t pid = waitpid(s->helper, &how, WNOHANG);
        if (pid == s->helper || (pid < 0 && errno != EINTR)) {
            s->ended_by = pid > 0 && WIFSIGNALED(how) ? WTERMSIG(how) : 0;
            if (pid > 0 && WIFEXITED(how) && WEXITSTATUS(how) == NOT_STORED) d->store_fails = true;
            s->helped = pid > 0 && WIFEXITED(how) && WEXITSTATUS(how) == STORED;
            s->helper = 0;
        } else if (fk_now_ms() >= until) {
            return false;
        } else {
            usleep(500);
        }
    }
    return true;
}

static void abandon(void *user, size_t i) {
    fk_tune_device *d = user;
    slot *s = &d->slots[i];
    if (!s->helper) return;
    kill(-s->helper, SIGKILL);
    while (waitpid(s->helper, NULL, 0) < 0 && errno == EINTR)
        continue;
    s->helper = 0;
}

/* ---- launches ---- */

static fk_status adopt(fk_status status, fk_error *err) {
    return status ? fk_fail(err, status, "%s", fk_last_error()) : FK_OK;
}

static fk_status launch(const fk_tune_device *d, const fk_kernel *kernel, int times, fk_error *err) {
    fk_status status = FK_OK;
    for (int i = 0; i < times && !status; i++)
        status = adopt(fk_execute(kernel, &d->timed.device, d->workspace, d->workspace_bytes, NULL), err);
    return status;
}

static fk_status record(const fk_tune_device *d, int which, fk_error *err) {
    const fk_driver *driver = d->context->driver;
    int pushed;
    int result = fk_driver_enter(driver, d->context->primary, &pushed);
    if (result) return fk_driver_check(driver, result, FK_LAUNCH_FAILED, "entering the primary CUDA context", err);
    result = driver->event_record(d->event[which], NULL);
    fk_driver_leave(driver, pushed);
    return fk_driver_check(driver, result, FK_LAUNCH_FAILED, "timing a launch", err);
}

static fk_status read_timer(const fk_tune_device *d, double *us, fk_error *err) {
    const fk_driver *driver = d->context->driver;
    float ms = 0;
    int pushed;
    int result = fk_driver_enter(driver, d->context->primary, &pushed);
    if (result) return fk_driver_check(driver, result, FK_LAUNCH_FAILED, "entering the primary CUDA context", err);
    result = driver->event_synchronize(d->event[1]);
    if (!result) result = driver->event_elapsed(&ms, d->event[0], d->event[1]);
    fk_driver_leave(driver, pushed);
    *us = (double)ms * 1e3;
    return fk_driver_check(driver, result, FK_LAUNCH_FAILED, "timing a launch", err);
}

static fk_status measure(const fk_tune_device *d, const fk_kernel *kernel, int times, double *us, fk_error *err) {
    const bool emulated = d->context->driver == NULL;
    const double begin = fk_now_ms();
    fk_status status = emulated ? FK_OK : record(d, 0, err);
    if (!status) status = launch(d, kernel, times, err);
    if (!status && !emulated) status = record(d, 1, err);
    if (!status && !emulated) status = read_timer(d, us, err);
    if (emulated) *us = (fk_now_ms() - begin) * 1e3;
    *us /= times;
    return status;
}

static fk_status sample(void *user, size_t i, double *us, fk_error *err) {
    const fk_tune_device *d = user;
    const slot *s = &d->slots[i];
    /* The one before it left its instructions and tensors in the caches. */
    const fk_status status = s->batch > 1 ? launch(d, s->kernel, 1, err) : FK_OK;
    return status ? status : measure(d, s->kernel, s->batch, us, err);
}

/* ---- admission ---- */

static fk_status grow_workspace(fk_tune_device *d, const fk_kernel *kernel, fk_error *err) {
    const size_t bytes = fk_kernel_workspace(kernel, &d->timed.device);
    if (bytes <= d->workspace_bytes) return FK_OK;
    fk_device_free(d->context, d->workspace);
    d->workspace = NULL;
    d->workspace_bytes = 0;
    const fk_status status = adopt(fk_device_malloc(d->context, bytes, &d->workspace), err);
    if (!status) d->workspace_bytes = bytes;
    return status;
}

static fk_status try_once(fk_tune_device *d, slot *s, fk_trial *trial, fk_error *err) {
    double us = 0;
    fk_status status = fk_tune_check_run(d->check, s->kernel, &trial->error, trial->reason, err);
    if (status || trial->reason[0]) return status;
    status = grow_workspace(d, s->kernel, err);
    if (!status) status = fk_tune_tail_poison(&d->timed, err);
    if (!status && d->context->driver) status = launch(d, s->kernel, 1, err);
    if (!status) status = measure(d, s->kernel, 1, &us, err);
    if (!status) status = fk_tune_tail_compare(&d->timed, &d->tail, trial->reason, err);
    if (status || trial->reason[0]) return status;
    s->batch = d->context->driver ? (int)fmin(MAX_BATCH, fmax(1, SAMPLE_US / fmax(us, 1))) : 1;
    if (d->context->driver && d->visits_known && us < IMPLAUSIBLE * trial->plan.tensor_us)
        snprintf(trial->reason, sizeof trial->reason, "extreme: %.3g us, and the tensor cores alone need about %.3g",
                 us, trial->plan.tensor_us);
    return FK_OK;
}

/* A failure that is of the plan and not of the machine; on a GPU a faulted launch ends the CUDA context. */
static bool is_of_plan(const fk_tune_device *d, const slot *s, fk_status status) {
    const bool built = s->kernel != NULL;
    return status == FK_COMPILE_FAILED || status == FK_UNSUPPORTED || status == FK_BAD_ARGUMENT ||
           (status == FK_LAUNCH_FAILED && (!built || !d->context->driver));
}

static void close_trial(void *user, size_t i) {
    fk_tune_device *d = user;
    if (d->slots[i].kernel) fk_kernel_free(d->slots[i].kernel);
    d->slots[i].kernel = NULL;
}

static bool tell_signal(const slot *s, fk_trial *trial) {
    if (s->ended_by)
        snprintf(trial->reason, sizeof trial->reason,
                 s->ended_by == SIGALRM ? "compiler: it did not end within %d s" : "compiler: signal %d ended it",
                 s->ended_by == SIGALRM ? COMPILE_SECONDS : s->ended_by);
    return s->ended_by != 0;
}

static fk_status open_trial(void *user, size_t i, fk_trial *trial, bool *good, fk_error *err) {
    fk_tune_device *d = user;
    slot *s = &d->slots[i];
    fk_error failure;
    *good = false;
    if (tell_signal(s, trial)) return FK_OK;
    fk_status status = fk_kernel_build(d->context, d->problem, &trial->plan, &s->kernel, &failure);
    if (!status) {
        const fk_image_info *image = &s->kernel->info.image;
        trial->registers = d->context->driver ? image->registers : -1;
        trial->spill_bytes = image->spill_bytes;
        trial->serialized_wgmma = image->serialized_wgmma;
        trial->compile_ms = image->compile_ms;
        memcpy(d->compiler, image->compiler, sizeof d->compiler);
        status = try_once(d, s, trial, &failure);
    }
    *good = !status && !trial->reason[0];
    if (status && is_of_plan(d, s, status)) {
        snprintf(trial->reason, sizeof trial->reason, "%s: %.120s", fk_status_name(status), failure.text);
        status = FK_OK;
    }
    if (!*good) close_trial(d, i);
    if (status && err) *err = failure;
    return status;
}

/* Where a helper failed, this process does so too, and learns why. */
static fk_status finish(void *user, size_t i, fk_trial *trial, fk_error *err) {
    fk_tune_device *d = user;
    slot *s = &d->slots[i];
    fk_error failure;
    fk_built built;
    if (s->helped || tell_signal(s, trial)) return FK_OK;
    const fk_status status = fk_image_obtain(d->context, d->problem, &trial->plan, &built, &failure);
    if (status && !is_of_plan(d, s, status)) return fk_fail(err, status, "%s", failure.text);
    if (status) {
        snprintf(trial->reason, sizeof trial->reason, "%s: %.120s", fk_status_name(status), failure.text);
        return FK_OK;
    }
    const bool kept = built.from_store || built.stored;
    char note[sizeof built.note];
    memcpy(note, built.note, sizeof note);
    fk_built_free(&built);
    return kept ? FK_OK
                : fk_fail(err, FK_IO, "what is compiled cannot be kept in %s: %s", fk_store_dir(d->context->store),
                          note);
}

/* ---- life ---- */

static fk_status make_events(fk_tune_device *d, fk_error *err) {
    const fk_driver *driver = d->context->driver;
    int pushed;
    if (!driver) return FK_OK;
    int result = fk_driver_enter(driver, d->context->primary, &pushed);
    if (result) return fk_driver_check(driver, result, FK_LAUNCH_FAILED, "entering the primary CUDA context", err);
    for (int i = 0; i < 2 && !result; i++)
        result = driver->event_create(&d->event[i], 0);
    fk_driver_leave(driver, pushed);
    return fk_driver_check(driver, result, FK_LAUNCH_FAILED, "making a CUDA event", err);
}

fk_status fk_tune_visits_known(const fk_problem *canonical, const char *template_dir, bool *known, fk_error *err) {
    fk_problem_terms terms;
    fk_expr_pool *pool = fk_expr_pool_create();
    if (!pool) return fk_fail(err, FK_NO_MEMORY, "no memory for a problem's terms");
    const fk_status status = fk_problem_terms_load(pool, canonical, template_dir, &terms, err);
    if (!status) *known = !(terms.mask.keep && fk_array_list_reads(&terms.arrays, terms.mask.keep));
    fk_expr_pool_destroy(pool);
    return status;
}

static fk_status prepare(void *user, fk_error *err) {
    fk_tune_device *d = user;
    fk_status status = make_events(d, err);
    if (!status) status = fk_tune_visits_known(d->problem, d->context->template_dir, &d->visits_known, err);
    if (!status) status = fk_tune_data_make(d->context, d->problem, d->shape, false, &d->timed, err);
    if (!status && d->problem->op == FK_BACKWARD) status = fk_tune_data_forward(&d->timed, err);
    if (!status) status = fk_tune_check_create(d->context, d->problem, d->shape, &d->check, err);
    return status;
}

fk_status fk_tune_device_open(fk_context *context, const fk_problem *p, const fk_shape *shape, const fk_trial *trials,
                              size_t count, fk_tune_device **out, fk_error *err) {
    fk_tune_device *d = calloc(1, sizeof *d);
    if (d) d->slots = calloc(count, sizeof *d->slots);
    if (!d || !d->slots) {
        free(d);
        return fk_fail(err, FK_NO_MEMORY, "no memory for %zu trials", count);
    }
    d->context = context;
    d->problem = p;
    d->shape = shape;
    d->trials = trials;
    d->count = count;
    *out = d;
    return FK_OK;
}

void fk_tune_device_close(fk_tune_device *d) {
    if (!d) return;
    const fk_driver *driver = d->context->driver;
    for (size_t i = 0; i < d->count; i++) {
        abandon(d, i);
        close_trial(d, i);
    }
    fk_tune_check_destroy(d->check);
    fk_tune_tail_free(&d->tail);
    fk_tune_data_free(&d->timed);
    fk_device_free(d->context, d->workspace);
    int pushed;
    if (d->event[0] && fk_driver_enter(driver, d->context->primary, &pushed) == 0) {
        for (int i = 0; i < 2; i++)
            if (d->event[i]) driver->event_destroy(d->event[i]);
        fk_driver_leave(driver, pushed);
    }
    free(d->slots);
    free(d);
}

fk_tune_rig fk_tune_device_rig(fk_tune_device *device) {
    return (fk_tune_rig){device, now_ms, prepare, start, is_built, abandon, open_trial, sample, close_trial, finish};
}

const char *fk_tune_device_compiler(const fk_tune_device *device) {
    return device->compiler;
}
