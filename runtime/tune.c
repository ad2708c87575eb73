/* fk_tune: plans, a search on a device, records. fk_tune_modelled: plans, the compiler's reports, one record. */
#include "clock.h"
#include "tune_rig.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "cache/vfs.h"

enum { MEASURED_PLANS = 12, PATIENT_PLANS = 64, MAX_JOBS = 16 };
/* Times the model's best beyond which a plan is not tried: the model has been off by less than half of that. */
static const double MEASURED_REACH = 2, PATIENT_REACH = 8;
static const double DEFAULT_BUDGET_MS = 60000;

static fk_status check_options(const fk_tune_options *o, bool timed, fk_error *err) {
    if (o->struct_size != sizeof *o)
        return fk_fail(err, FK_BAD_ARGUMENT, "fk_tune_options.struct_size is %zu: must be %zu, as its _INIT sets it",
                       o->struct_size, sizeof *o);
    if (timed && o->rigor != FK_RIGOR_MEASURE && o->rigor != FK_RIGOR_PATIENT)
        return fk_fail(err, FK_BAD_ARGUMENT, "rigor is %d: must be 1 (measure) or 2 (patient)", o->rigor);
    if (!(o->budget_ms >= 0 && o->budget_ms <= 1e9))
        return fk_fail(err, FK_BAD_ARGUMENT, "budget_ms is %g: must be from 0 to 1e9", o->budget_ms);
    if (o->jobs < -1 || o->jobs > 1024)
        return fk_fail(err, FK_BAD_ARGUMENT, "jobs is %d: must be from -1 to 1024", o->jobs);
    return FK_OK;
}

static int num_jobs(const fk_tune_options *o) {
    const long cores = sysconf(_SC_NPROCESSORS_ONLN);
    const long jobs = o->jobs ? o->jobs : cores;
    return (int)(jobs < 0 ? 0 : jobs < 1 ? 1 : jobs > MAX_JOBS ? MAX_JOBS : jobs);
}

/* ---- candidates ---- */

static fk_trial trial_of(const fk_plan_info *plan) {
    fk_trial t = {.plan = *plan, .registers = -1};
    t.plan.reason[0] = 0;
    t.plan.chosen = 0;
    return t;
}

/* Legal plans in the model's order; `*out` is malloc'ed. */
static fk_status list_trials(const fk_problem *p, const fk_device_info *planned, const fk_device_info *runs,
                             const fk_plan_options *planning, double reach, size_t most, fk_trial **out, size_t *count,
                             fk_error *err) {
    fk_plan_info *plans;
    size_t num_plans;
    fk_status status = fk_plan_enumerate(p, planned, planning, &plans, &num_plans, err);
    if (status) return status;
    fk_trial *trials = calloc(num_plans, sizeof *trials);
    size_t n = 0;
    for (size_t i = 0; trials && i < num_plans && n < most; i++)
        if (plans[i].legal && plans[i].smem_bytes <= runs->smem_per_block &&
            plans[i].model_us <= reach * plans[0].model_us)
            trials[n++] = trial_of(&plans[i]);
    free(plans);
    if (!trials) return fk_fail(err, FK_NO_MEMORY, "no memory for %zu trials", num_plans);
    if (n == 0) {
        free(trials);
        return fk_fail(err, FK_UNSUPPORTED, "no plan for %s fits %s", planned->name, runs->name);
    }
    *out = trials;
    *count = n;
    return FK_OK;
}

static bool is_compiled(const fk_trial *t) {
    return t->compile_ms > 0;
}

/* What a kernel takes without records: the first plan, or of the first few the one with the least flaws. */
static void mark_choice(const fk_problem *p, fk_trial *trials, size_t count) {
    const int64_t least = fk_minor_spill(p, &trials[0].plan);
    fk_trial *best = NULL;
    for (size_t i = 0; i < count && i < FK_BUILD_PLANS; i++) {
        if (!is_compiled(&trials[i])) continue;
        const int64_t flaws = fk_build_flaws(trials[i].spill_bytes, trials[i].serialized_wgmma);
        if (!best || flaws < fk_build_flaws(best->spill_bytes, best->serialized_wgmma)) best = &trials[i];
        if (flaws <= least) break;
    }
    if (best) best->plan.chosen = FK_CHOSEN_BY_RULE;
}

static int rank_of(const fk_trial *t) {
    return t->state == FK_TRIAL_TIMED ? 0 : t->state == FK_TRIAL_REJECTED ? 1 : 2;
}

static int by_time(const void *a, const void *b) {
    const fk_trial *x = a, *y = b;
    if (rank_of(x) != rank_of(y)) return rank_of(x) - rank_of(y);
    const double t = rank_of(x) ? x->plan.model_us : x->us, u = rank_of(x) ? y->plan.model_us : y->us;
    return (t > u) - (t < u);
}

/* ---- records ---- */

/* What all records of one search share. */
typedef struct common {
    const fk_problem *problem;
    const fk_shape *shape;
    const fk_device_info *device;
    const char *dir, *compiler;
    bool emulated;
    int32_t rigor;
} common;

static void spell_device(const fk_device_info *device, bool emulated, char *out, size_t size) {
    snprintf(out, size, "%s%s", emulated ? FK_TUNING_EMULATOR : "", device->name);
}

static fk_status fill_common(const common *c, fk_tuning_record *r, fk_error *err) {
    memset(r, 0, sizeof *r);
    r->shape = *c->shape;
    spell_device(c->device, c->emulated, r->device, sizeof r->device);
    snprintf(r->compiler, sizeof r->compiler, "%s", c->compiler);
    r->sm = c->device->sm;
    r->num_sms = c->device->num_sms;
    r->clock_ghz = c->device->clock_ghz;
    r->hbm_gbps = c->device->hbm_gbps;
    r->rigor = c->rigor;
    r->unix_time = (int64_t)time(NULL);
    return fk_problem_write(c->problem, r->problem, sizeof r->problem, err);
}

/* The fastest first: of two that noise does not tell apart, the earlier counts. */
static fk_status append_records(const common *c, const fk_trial *trials, size_t count, fk_error *err) {
    char *lines = malloc(count * FK_TUNING_LINE_MAX);
    fk_tuning_record *r = malloc(sizeof *r);
    size_t used = 0;
    fk_status status = FK_OK;
    if (!lines || !r) status = fk_fail(err, FK_NO_MEMORY, "no memory for %zu tuning records", count);
    if (!status) status = fill_common(c, r, err);
    for (size_t i = 0; i < count && !status; i++) {
        const fk_trial *t = &trials[i];
        if (t->state != FK_TRIAL_TIMED) continue;
        fk_plan_write(&t->plan, r->plan);
        strcpy(r->generator, fk_advice_generator(r->problem, r->plan));
        r->us = t->us, r->spread = t->spread, r->error = t->error, r->samples = t->samples;
        r->registers = t->registers < 0 ? -1 : t->registers;
        r->spill_bytes = t->registers < 0 ? -1 : t->spill_bytes;
        used += fk_tuning_write(r, fk_advice_buckets(), lines + used);
    }
    if (!status) status = fk_tuning_append(&fk_vfs_posix, c->dir, r->device, lines, used, err);
    free(r);
    free(lines);
    return status;
}

/* ---- timed ---- */

/* Before anything is timed for them. */
static fk_status check_records(const fk_context *context, fk_error *err) {
    char device[sizeof((fk_tuning_record *)0)->device];
    spell_device(&context->planned, context->driver == NULL, device, sizeof device);
    return fk_tuning_append(&fk_vfs_posix, fk_store_dir(context->store), device, NULL, 0, err);
}

static fk_status search(fk_context *context, const fk_problem *p, const fk_shape *shape, const fk_tune_options *options,
                        fk_tune_watch watch, void *user, fk_trial *trials, size_t count, fk_error *err) {
    const bool patient = options->rigor == FK_RIGOR_PATIENT;
    const fk_tune_settings settings = {.budget_ms = options->budget_ms > 0 ? options->budget_ms : DEFAULT_BUDGET_MS,
                                       .jobs = num_jobs(options),
                                       .first_round = patient ? 8 : 4,
                                       .last_samples = patient ? 96 : 32,
                                       .keep_all = patient,
                                       .watch = watch,
                                       .user = user};
    const bool keeps_records = !options->dry_run && !options->compile_only;
    fk_tune_device *device;
    fk_status status = keeps_records ? check_records(context, err) : FK_OK;
    if (!status) status = fk_tune_device_open(context, p, shape, trials, count, &device, err);
    if (status) return status;
    const fk_tune_rig rig = fk_tune_device_rig(device);
    status = options->compile_only ? fk_tune_compile(&rig, &settings, trials, count, err)
                                   : fk_tune_search(&rig, &settings, trials, count, err);
    const char *dir = fk_store_dir(context->store);
    const common c = {
        p, shape, &context->planned, dir, fk_tune_device_compiler(device), context->driver == NULL, options->rigor};
    mark_choice(p, trials, count);
    qsort(trials, count, sizeof *trials, by_time);
    if (!status && keeps_records) status = append_records(&c, trials, count, err);
    fk_tune_device_close(device);
    return status;
}

static fk_status check_mode(const fk_context *context, const fk_tune_options *options, fk_error *err) {
    if (fk_forbids_compiling(context)) return fk_fail(err, FK_NO_JIT, "the cache mode forbids compiling plans to time");
    if (options->compile_only && (context->cache_mode != FK_CACHE_NORMAL || *fk_store_reason(context->store)))
        return fk_fail(err, FK_IO, "compile_only is 1: there must be a store to compile into; %s",
                       *fk_store_reason(context->store) ? fk_store_reason(context->store)
                                                        : "the cache mode is not NORMAL");
    if (context->cache_mode == FK_CACHE_READ_ONLY && !options->dry_run && !options->compile_only)
        return fk_fail(err, FK_IO,
                       "the cache mode is READ_ONLY, so that no tuning record can be written to %s; "
                       "dry_run = 1 writes none",
                       fk_store_dir(context->store));
    if (!*fk_store_dir(context->store) && !options->dry_run && !options->compile_only)
        return fk_fail(err, FK_IO, "%s, so that no tuning record can be written; dry_run = 1 writes none",
                       *fk_store_reason(context->store) ? fk_store_reason(context->store) : "there is no store");
    return FK_OK;
}

static fk_status tune(fk_context *context, const fk_problem *problem, const fk_tune_options *options,
                      fk_tune_watch watch, void *user, fk_trial **trials, size_t *count, fk_error *err) {
    fk_problem p;
    fk_shape shape;
    fk_plan_options planning = context->planning;
    const bool patient = options->rigor == FK_RIGOR_PATIENT;
    fk_status status = check_options(options, true, err);
    if (!status) status = check_mode(context, options, err);
    if (!status) status = fk_problem_normalise(problem, &p, err);
    if (!status) status = fk_shape_fill(&p, &options->shape, &shape, err);
    if (!status && context->driver && strcmp(context->planned.name, context->runs.name) != 0)
        status = fk_fail(err, FK_UNSUPPORTED, "plan_for is %s: its plans can be timed on it alone, and this is %s",
                         context->planned.name, context->runs.name);
    if (status) return status;
    planning.shape = shape;
    planning.plan = NULL;
    const char *dir = fk_store_dir(context->store);
    if (options->resume && *dir) {
        const fk_advice own = {.dir = dir, .emulated = context->driver == NULL};
        bool tuned;
        status = fk_advice_is_tuned(&p, &context->planned, &planning, &own, options->rigor, &tuned, err);
        if (!status && tuned) *trials = NULL, *count = 0;
        if (status || tuned) return status;
    }
    fk_trial *found;
    size_t num_found;
    status = list_trials(&p, &context->planned, &context->runs, &planning, patient ? PATIENT_REACH : MEASURED_REACH,
                         patient ? PATIENT_PLANS : MEASURED_PLANS, &found, &num_found, err);
    if (status) return status;
    status = search(context, &p, &shape, options, watch, user, found, num_found, err);
    if (status)
        free(found);
    else
        *trials = found, *count = num_found;
    return status;
}

fk_status fk_tune(fk_context *context, const fk_problem *problem, const fk_tune_options *options, fk_tune_watch watch,
                  void *user, fk_trial **trials, size_t *count) {
    static const fk_tune_options defaults = FK_TUNE_OPTIONS_INIT;
    fk_error err;
    if (!context || !problem || !trials || !count)
        return fk_refuse(FK_BAD_ARGUMENT, "%s is null",
                         !context   ? "context"
                         : !problem ? "problem"
                         : !trials  ? "trials"
                                    : "count");
    return tune(context, problem, options ? options : &defaults, watch, user, trials, count, &err) ? fk_report(&err)
                                                                                                   : FK_OK;
}

/* ---- modelled ---- */

/* Compiles plan after plan until one has no flaws; that one, or the one with least, is the only one that is "timed". */
static fk_status compile_trials(const fk_problem *p, const char *gpu, const fk_device_info *device,
                                const fk_tune_options *options, fk_trial *trials, size_t count, char compiler[96],
                                fk_error *err) {
    const double begin = fk_now_ms(), budget = options->budget_ms > 0 ? options->budget_ms : DEFAULT_BUDGET_MS;
    const int64_t least = fk_minor_spill(p, &trials[0].plan);
    fk_trial *best = NULL;
    for (size_t i = 0; i < count; i++) {
        fk_generate_options how = FK_GENERATE_OPTIONS_INIT;
        fk_trial *t = &trials[i];
        fk_image_info info;
        void *image;
        t->state = FK_TRIAL_SKIPPED;
        if (best &&
            (fk_build_flaws(best->spill_bytes, best->serialized_wgmma) <= least || fk_now_ms() - begin > budget)) {
            snprintf(t->reason, sizeof t->reason, "modelled slower than one without flaws");
            continue;
        }
        how.plan = &t->plan;
        const fk_status status = fk_build(p, gpu, &how, &image, &info, NULL);
        if (status && status != FK_COMPILE_FAILED) return fk_fail(err, status, "%s", fk_last_error());
        t->state = FK_TRIAL_REJECTED;
        if (status) {
            snprintf(t->reason, sizeof t->reason, "%s: %.120s", fk_status_name(status), fk_last_error());
            continue;
        }
        fk_free(image);
        memcpy(compiler, info.compiler, sizeof info.compiler);
        t->registers = info.registers, t->spill_bytes = info.spill_bytes, t->serialized_wgmma = info.serialized_wgmma;
        t->compile_ms = info.compile_ms;
        if ((int64_t)info.registers * info.threads * t->plan.ctas_per_sm > device->registers_per_sm)
            snprintf(t->reason, sizeof t->reason, "registers: %d of %d threads leave no room for %d CTAs",
                     info.registers, info.threads, t->plan.ctas_per_sm);
        else if (fk_build_flaws(info.spill_bytes, info.serialized_wgmma) > least)
            snprintf(t->reason, sizeof t->reason, "%d bytes spilled%s", info.spill_bytes,
                     info.serialized_wgmma ? ", wgmma serialised" : "");
        if (!best || fk_build_flaws(t->spill_bytes, t->serialized_wgmma) <
                         fk_build_flaws(best->spill_bytes, best->serialized_wgmma))
            best = t;
    }
    if (!best)
        return fk_fail(err, FK_COMPILE_FAILED, "none of %zu plans compiles; the first: %s", count, trials[0].reason);
    best->state = FK_TRIAL_TIMED;
    best->us = best->plan.model_us;
    return FK_OK;
}

static fk_status tune_modelled(const fk_problem *problem, const char *gpu, const fk_tune_options *options,
                               const char *dir, fk_trial **trials, size_t *count, fk_error *err) {
    fk_problem p;
    fk_shape shape;
    fk_device_info device;
    fk_plan_options planning = FK_PLAN_OPTIONS_INIT;
    char compiler[96] = "";
    fk_status status = check_options(options, false, err);
    if (!status) status = fk_problem_normalise(problem, &p, err);
    if (!status) status = fk_shape_fill(&p, &options->shape, &shape, err);
    if (!status) status = fk_device_named(gpu, &device, err);
    if (status) return status;
    planning.shape = shape;
    fk_trial *found;
    size_t num_found;
    status = list_trials(&p, &device, &device, &planning, MEASURED_REACH, MEASURED_PLANS, &found, &num_found, err);
    if (status) return status;
    status = compile_trials(&p, gpu, &device, options, found, num_found, compiler, err);
    const common c = {&p, &shape, &device, dir, compiler, false, FK_RIGOR_MODEL};
    mark_choice(&p, found, num_found);
    qsort(found, num_found, sizeof *found, by_time);
    if (!status && !options->dry_run) status = append_records(&c, found, num_found, err);
    if (status)
        free(found);
    else
        *trials = found, *count = num_found;
    return status;
}

fk_status fk_tune_modelled(const fk_problem *problem, const char *gpu, const fk_tune_options *options, const char *dir,
                           fk_trial **trials, size_t *count) {
    static const fk_tune_options defaults = FK_TUNE_OPTIONS_INIT;
    fk_error err;
    if (!problem || !trials || !count)
        return fk_refuse(FK_BAD_ARGUMENT, "%s is null", !problem ? "problem" : !trials ? "trials" : "count");
    return tune_modelled(problem, gpu, options ? options : &defaults, dir, trials, count, &err) ? fk_report(&err)
                                                                                                : FK_OK;
}
