/* Random problems (random_draw.h), each judged against float64 (random_trial.h), in several processes.
 * A failure prints one line that reproduces it. Exit status: 0, 1 on a failure, 77 if there is no such device.
 * Jobs are forked before any device is opened; each takes whole groups of seeds that share a kernel. A job that is at
 * one problem for longer than --patience is ended, and its seed has failed: a kernel may hang. */
#include "random_plan.h"
#include "random_trial.h"
#include "scratch.h"

#include <errno.h>
#include <getopt.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define NO_DEVICE 77
#define MAX_JOBS 64
#define PATIENCE 90.0 /* seconds, on a GPU; the emulator may take any time */

typedef struct settings {
    uint64_t seed, count;
    const char *device, *plan_for, *cache_dir, *only; /* only: problems whose spelling has it; or NULL */
    const char *as_on;                                /* the emulator draws what this GPU draws; or NULL */
    double seconds, patience;                         /* 0: no limit */
    int jobs;
    bool verbose, gpu, any_plan;
    char scratch[256]; /* a cache of our own; "" if one was named */
} settings;

/* What a job tells its parent after each problem; `started` before it, so that a crash names its seed. */
typedef struct report {
    uint64_t seed;
    double ratio; /* error over eager's */
    int32_t started, failed, compiled, spills;
} report;

/* ---- jobs --------------------------------------------------------------------------------------------- */

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

/* plan: of every kernel; NULL: the best of each. */
static fk_status open_context(const settings *s, const char *plan_for, const char *plan, fk_context **out) {
    fk_context_options options = FK_CONTEXT_OPTIONS_INIT;
    options.planning.plan = plan;
    options.device = s->device;
    options.plan_for = plan_for;
    options.cache_dir = s->cache_dir;
    return fk_context_create(&options, out);
}

/* gpu: whose plan, with --any-plan. */
static bool planned_trial(const settings *s, fk_context *context, const char *gpu, const drawn *d,
                          char plan[FK_MAX_PLAN], verdict *out) {
    fk_context *kernels = NULL;
    if (!s->any_plan) return random_trial(context, context, d, out);
    *out = (verdict){0};
    if (!random_plan(d, gpu, plan) || open_context(s, s->gpu ? s->plan_for : d->plan_for, plan, &kernels)) {
        snprintf(out->complaint, sizeof out->complaint, "plan: %s", fk_last_error());
        return false;
    }
    const bool passed = random_trial(context, kernels, d, out);
    fk_context_destroy(kernels);
    return passed;
}

/* In a context of its own, because the emulator reads these when a context is opened. */
static bool emulated_trial(const settings *s, const drawn *d, char plan[FK_MAX_PLAN], verdict *out) {
    char seed[24], sms[12];
    fk_context *context = NULL;
    snprintf(sms, sizeof sms, d->emulator_sms ? "%d" : "", d->emulator_sms);
    snprintf(seed, sizeof seed, "%llu", (unsigned long long)d->emulator_seed);
    setenv("FLASHKILN_EMU_SMS", sms, 1);
    setenv("FLASHKILN_EMU_SEED", seed, 1);
    setenv("FLASHKILN_EMU_LATE", d->late_copies ? "1" : "0", 1);
    if (open_context(s, d->plan_for, NULL, &context)) {
        snprintf(out->complaint, sizeof out->complaint, "context: %s", fk_last_error());
        return false;
    }
    const bool passed = planned_trial(s, context, d->plan_for, d, plan, out);
    fk_context_destroy(context);
    return passed;
}

/* One line: a compiler's log shows its beginning. */
static void flatten(char *text) {
    for (char *c = text; *c; c++)
        if (*c == '\n') *c = '|';
    if (strlen(text) > 400) strcpy(text + 400, "...");
}

static void describe(const settings *s, const drawn *d, const char *plan, verdict *v, bool failed) {
    const fk_args *a = &d->args;
    flatten(v->complaint);
    char plan_for[80] = "", reuse[40] = "";
    if (!failed) snprintf(v->complaint, sizeof v->complaint, "passes, error %.3f x eager's", v->ratio);
    snprintf(plan_for, sizeof plan_for, "%s%s%s%s", s->plan_for ? " --plan-for " : "", s->plan_for ? s->plan_for : "",
             s->as_on ? " --as-on " : "", s->as_on ? s->as_on : "");
    if (kernel_reuse != KERNEL_REUSE) snprintf(reuse, sizeof reuse, " --reuse %llu", (unsigned long long)kernel_reuse);
    printf("%s seed %llu: %s for %s%s%s, batch %lld, heads %lld/%lld, seqlen %lld x %lld, scale %g: %s%s"
           "random_problems --device %s%s%s%s --seed %llu --count 1\n",
           failed ? "FAIL" : "ok", (unsigned long long)d->seed, d->spelling,
           s->gpu && !s->plan_for ? "it" : d->plan_for, *plan ? " by " : "", plan, (long long)a->batch,
           (long long)a->num_heads_q, (long long)a->num_heads_kv, (long long)a->seqlen_q, (long long)a->seqlen_k,
           (double)a->softmax_scale, v->complaint, failed ? "; reproduce: " : "; again: ", s->device, plan_for, reuse,
           s->any_plan ? " --any-plan" : "", (unsigned long long)d->seed);
    fflush(stdout);
}

/* One process. On a GPU one context serves all problems; the emulator gets one for each, with its own schedule. */
static int run_job(const settings *s, int job, int pipe_to_parent) {
    fk_context *shared = NULL;
    draw_limits limits = {.plan_for = s->plan_for, .gpu = s->gpu};
    fk_device_info planned;
    if (s->gpu) {
        fk_status status = open_context(s, s->plan_for, NULL, &shared);
        if (!status) status = fk_context_devices(shared, NULL, &planned);
        if (status) {
            if (job == 0) printf("%s: %s\n", s->device, fk_last_error());
            return status == FK_NO_DEVICE ? NO_DEVICE : 1;
        }
        limits.fp16_only = planned.sm < 80;
        limits.e4m3 = planned.sm == 90;
    }
    if (s->as_on) {
        const fk_status status = fk_device_find(s->plan_for ? s->plan_for : s->as_on, &planned);
        if (status) {
            printf("%s\n", fk_last_error());
            return 1;
        }
        limits.gpu = true;
        limits.fp16_only = planned.sm < 80;
        limits.e4m3 = planned.sm == 90;
    }
    const double deadline = now() + s->seconds;
    for (uint64_t seed = s->seed; seed < s->seed + s->count; seed++) {
        if (seed / kernel_reuse % (uint64_t)s->jobs != (uint64_t)job) continue;
        if (s->seconds > 0 && now() > deadline) break;
        drawn d;
        report r = {.seed = seed, .started = 1};
        draw_problem(seed, &limits, &d);
        if (s->as_on) d.plan_for = s->plan_for ? s->plan_for : s->as_on;
        if (s->only && !strstr(d.spelling, s->only)) continue;
        if (write(pipe_to_parent, &r, sizeof r) != sizeof r) return 1;
        verdict v = {0};
        char plan[FK_MAX_PLAN] = "";
        const bool passed =
            shared ? planned_trial(s, shared, planned.key, &d, plan, &v) : emulated_trial(s, &d, plan, &v);
        if (!passed || s->verbose) describe(s, &d, plan, &v, !passed);
        r = (report){.seed = seed, .ratio = v.ratio, .failed = !passed, .compiled = v.compiled, .spills = v.spills};
        if (write(pipe_to_parent, &r, sizeof r) != sizeof r) return 1;
    }
    fk_context_destroy(shared);
    return 0;
}

/* ---- the parent --------------------------------------------------------------------------------------- */

static const double bin_end[] = {0.25, 0.5, 0.75, 1.0, 1.25, 1.5, 2.0};
enum { NUM_BINS = sizeof bin_end / sizeof *bin_end };

typedef struct summary {
    uint64_t problems, failed, compiled, spilling, bin[NUM_BINS], worst_seed;
    double worst;
} summary;

static void tally(summary *all, const report *r) {
    all->problems++;
    all->failed += r->failed != 0;
    all->compiled += r->compiled != 0;
    all->spilling += r->compiled && r->spills;
    if (r->failed) return;
    if (r->ratio > all->worst) {
        all->worst = r->ratio;
        all->worst_seed = r->seed;
    }
    int bin = 0;
    while (bin < NUM_BINS - 1 && r->ratio > bin_end[bin])
        bin++;
    all->bin[bin]++;
}

static void print_summary(const settings *s, const summary *all, double seconds) {
    printf("%llu problems on %s, %llu failed; worst error %.2f x eager's (seed %llu); "
           "%llu kernels compiled, %llu of them spill registers; %.0f s\n",
           (unsigned long long)all->problems, s->device, (unsigned long long)all->failed, all->worst,
           (unsigned long long)all->worst_seed, (unsigned long long)all->compiled, (unsigned long long)all->spilling,
           seconds);
    printf("error / eager's:");
    for (int i = 0; i < NUM_BINS; i++)
        printf("  <= %.2f: %llu", bin_end[i], (unsigned long long)all->bin[i]);
    printf("\n");
}

/* A process, and the seed that it is at. */
typedef struct worker {
    pid_t child;
    uint64_t seed; /* UINT64_MAX: before the first */
    double since;
    bool at_work, late;
} worker;

static void end_late(const settings *s, worker *workers) {
    for (worker *w = workers; w < workers + s->jobs; w++)
        if (s->patience > 0 && w->at_work && !w->late && now() - w->since > s->patience) {
            w->late = true;
            kill(w->child, SIGKILL);
        }
}

/* Until all jobs have closed the pipe. */
static void listen_to(const settings *s, int pipe_from_jobs, worker *workers, summary *all) {
    struct pollfd reports = {.fd = pipe_from_jobs, .events = POLLIN};
    for (report r;;) {
        if (poll(&reports, 1, 1000) > 0) {
            if (read(pipe_from_jobs, &r, sizeof r) != sizeof r) return;
            worker *w = &workers[r.seed / kernel_reuse % (uint64_t)s->jobs];
            w->at_work = r.started;
            w->seed = r.seed;
            w->since = now();
            if (!r.started) tally(all, &r);
        }
        end_late(s, workers);
    }
}

/* Starts all jobs on one pipe; a report is shorter than PIPE_BUF, so reports do not mix. */
static int run_all(const settings *s, summary *all) {
    int ends[2], failures = 0, absent = 0;
    worker workers[MAX_JOBS] = {0};
    if (pipe(ends)) return 1;
    for (int job = 0; job < s->jobs; job++) {
        workers[job].seed = UINT64_MAX;
        workers[job].child = fork();
        if (workers[job].child == 0) {
            close(ends[0]);
            const int status = run_job(s, job, ends[1]);
            fflush(stdout);
            _exit(status);
        }
    }
    close(ends[1]);
    listen_to(s, ends[0], workers, all);
    close(ends[0]);
    for (int job = 0; job < s->jobs; job++) {
        const uint64_t seed = workers[job].seed;
        int status = 0;
        waitpid(workers[job].child, &status, 0);
        if (status != 0 && seed != UINT64_MAX)
            printf("FAIL seed %llu: %s %d%s; reproduce: random_problems --device %s%s%s --reuse %llu%s --seed %llu "
                   "--count 1\n",
                   (unsigned long long)seed, WIFSIGNALED(status) ? "signal" : "the process ended with",
                   WIFSIGNALED(status) ? WTERMSIG(status) : WEXITSTATUS(status),
                   workers[job].late ? " (not done within --patience)" : "", s->device,
                   s->plan_for ? " --plan-for " : "", s->plan_for ? s->plan_for : "", (unsigned long long)kernel_reuse,
                   s->any_plan ? " --any-plan" : "", (unsigned long long)seed);
        absent += WIFEXITED(status) && WEXITSTATUS(status) == NO_DEVICE;
        failures += status != 0;
    }
    return absent == s->jobs ? NO_DEVICE : failures != 0;
}

static uint64_t number(const char *text) {
    char *end;
    errno = 0;
    const uint64_t value = strtoull(text, &end, 0);
    if (errno || end == text || *end) {
        fprintf(stderr, "\"%s\" is not a number\n", text);
        exit(2);
    }
    return value;
}

static void parse(int argc, char **argv, settings *s) {
    static const struct option options[] = {
        {"seed", 1, NULL, 's'},     {"count", 1, NULL, 'n'},   {"device", 1, NULL, 'd'},    {"plan-for", 1, NULL, 'p'},
        {"seconds", 1, NULL, 't'},  {"jobs", 1, NULL, 'j'},    {"cache-dir", 1, NULL, 'c'}, {"reuse", 1, NULL, 'r'},
        {"only", 1, NULL, 'o'},     {"verbose", 0, NULL, 'v'}, {"as-on", 1, NULL, 'g'},     {"any-plan", 0, NULL, 'a'},
        {"patience", 1, NULL, 'w'}, {NULL, 0, NULL, 0}};
    for (int c; (c = getopt_long(argc, argv, "", options, NULL)) != -1;) {
        switch (c) {
        case 's':
            s->seed = number(optarg);
            break;
        case 'n':
            s->count = number(optarg);
            break;
        case 'd':
            s->device = optarg;
            break;
        case 'p':
            s->plan_for = optarg;
            break;
        case 't':
            s->seconds = (double)number(optarg);
            break;
        case 'j':
            s->jobs = (int)number(optarg);
            break;
        case 'c':
            s->cache_dir = optarg;
            break;
        case 'r': /* problems that share their kernels */
            kernel_reuse = number(optarg);
            break;
        case 'o':
            s->only = optarg;
            break;
        case 'g':
            s->as_on = optarg;
            break;
        case 'a': /* drawn from the legal ones */
            s->any_plan = true;
            break;
        case 'w':
            s->patience = (double)number(optarg);
            break;
        case 'v':
            s->verbose = true;
            break;
        default:
            fprintf(stderr, "usage: random_problems [--seed S] [--count N] [--device emu|cuda:0] [--plan-for GPU]\n"
                            "       [--seconds T] [--jobs J] [--reuse N] [--cache-dir DIR] [--only WORD] [--as-on GPU] "
                            "[--any-plan] [--patience T] [--verbose]\n");
            exit(2);
        }
    }
    s->gpu = strcmp(s->device, "emu") != 0;
    if (s->patience < 0) s->patience = s->gpu ? PATIENCE : 0;
    if (kernel_reuse < 1) {
        fprintf(stderr, "--reuse is 0; it must be at least 1\n");
        exit(2);
    }
    if (s->jobs < 1 || s->jobs > MAX_JOBS) {
        fprintf(stderr, "--jobs is %d; it must be 1 to %d\n", s->jobs, MAX_JOBS);
        exit(2);
    }
}

int main(int argc, char **argv) {
    settings s = {.seed = 1, .count = 500, .patience = -1, .device = "emu", .jobs = 1};
    summary all = {0};
    parse(argc, argv, &s);
    if (!s.cache_dir) {
        s.cache_dir = s.scratch;
        if (!scratch_make(s.scratch, sizeof s.scratch)) {
            fprintf(stderr, "%s: %s\n", s.scratch, strerror(errno));
            return 1;
        }
    }
    if (s.jobs > 1) setenv("FLASHKILN_EMU_THREADS", "1", 0); /* the jobs fill the cores */
    const double start = now();
    const int status = run_all(&s, &all);
    if (status != NO_DEVICE) print_summary(&s, &all, now() - start);
    if (*s.scratch) scratch_remove(s.scratch);
    return all.failed ? 1 : status;
}
