/* The planner knows no files, and records know no plans: here they meet. */
#include "advice.h"

#include "cache/vfs.h"
#include "gen/embedded.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

/* ---- what came with the library ---- */

static pthread_once_t once = PTHREAD_ONCE_INIT;
static fk_buckets buckets;

static void read_buckets(void) {
    for (const fk_embedded_file *f = fk_embedded; f->path; f++)
        if (strcmp(f->path, "cache/tuned/buckets.json") == 0) fk_buckets_read(f->text, f->size, &buckets);
}

const fk_buckets *fk_advice_buckets(void) {
    pthread_once(&once, read_buckets);
    return &buckets;
}

/* ---- the record that counts ---- */

static const char *variable(void) {
    const char *value = secure_getenv("FLASHKILN_TUNING");
    return value ? value : "";
}

static bool says_off(const char *value) {
    return strcasecmp(value, "off") == 0 || strcmp(value, "0") == 0;
}

bool fk_advice_is_off(const fk_plan_options *options) {
    return options->reproducible || options->plan || options->rule != FK_RULE_MODEL || says_off(variable());
}

fk_status fk_advice_check_environment(fk_error *err) {
    const char *value = variable();
    if (!*value || says_off(value) || strcasecmp(value, "on") == 0 || strcmp(value, "1") == 0) return FK_OK;
    return fk_fail(err, FK_BAD_ARGUMENT, "FLASHKILN_TUNING is \"%.40s\": must be on or off", value);
}

typedef struct candidates {
    fk_plan_info *plans;
    size_t count;
} candidates;

/* The place of a record's plan among those that can be launched; count: it is none of them. */
static size_t find(const candidates *c, const char *text) {
    fk_plan_info wanted;
    if (fk_plan_read(text, &wanted, NULL) != FK_OK) return c->count;
    const size_t at = fk_plan_find(c->plans, c->count, &wanted);
    return at < c->count && c->plans[at].legal ? at : c->count;
}

static bool accepts(void *user, const char *plan) {
    const candidates *c = user;
    return find(c, plan) < c->count;
}

static void explain(const fk_tuning_answer *answer, fk_plan_info *plan) {
    static const char *const how[] = {"modelled", "measured", "measured with patience"};
    const fk_tuning_record *r = &answer->record;
    char bucket[FK_BUCKET_TEXT], text[400];
    const fk_bucket index = fk_bucket_of(&buckets, &r->shape);
    fk_bucket_spell(&buckets, &index, bucket);
    snprintf(text, sizeof text, "%s record: %s %.1f us +- %.1f%% for %s on %s%s%s",
             answer->source == 0 ? "own" : "shipped", how[r->rigor], r->us, 100 * r->spread, bucket, r->device,
             answer->level == FK_TUNING_EXACT ? "" : ", the nearest GPU that has one",
             fk_advice_is_fresh(r) ? "" : ", by another version");
    snprintf(plan->reason, sizeof plan->reason, "%.*s", (int)sizeof plan->reason - 1, text);
}

static fk_status ask(const fk_tuning_query *query, const fk_advice *advice, fk_tuning_answer *answer, fk_error *err) {
    memset(answer, 0, sizeof *answer);
    if (!advice->no_dir) {
        fk_tuning_text own;
        const fk_status status = fk_tuning_load_dir(&fk_vfs_posix, advice->dir, false, &own, err);
        if (status != FK_OK) return status;
        fk_tuning_scan(own.bytes, own.size, 0, query, answer);
        free(own.bytes);
    }
    for (const fk_embedded_file *f = fk_embedded; f->path; f++)
        if (strncmp(f->path, "cache/tuned/", 12) == 0 && strstr(f->path, ".jsonl"))
            fk_tuning_scan(f->text, f->size, 1, query, answer);
    return FK_OK;
}

/* Of a problem and a shape; `spelling` is the query's. */
static fk_status make_query(const fk_problem *p, const fk_device_info *device, const fk_plan_options *options,
                            const fk_advice *advice, char spelling[FK_MAX_SPELLING], fk_tuning_query *out,
                            fk_error *err) {
    fk_shape shape;
    fk_problem problem;
    *out = (fk_tuning_query){.problem = spelling,
                             .device = device,
                             .emulated = advice->emulated,
                             .is_fresh = fk_advice_is_fresh,
                             .buckets = fk_advice_buckets()};
    fk_status status = fk_problem_normalise(p, &problem, err);
    if (status == FK_OK) status = fk_problem_write(&problem, spelling, FK_MAX_SPELLING, err);
    if (status == FK_OK) status = fk_shape_fill(&problem, &options->shape, &shape, err);
    if (status == FK_OK) out->bucket = fk_bucket_of(out->buckets, &shape);
    return status;
}

fk_status fk_advice_find(const fk_problem *p, const fk_device_info *device, const fk_plan_options *options,
                         const fk_advice *advice, bool *found, fk_error *err) {
    char spelling[FK_MAX_SPELLING];
    fk_tuning_query query;
    fk_tuning_answer *answer = malloc(sizeof *answer);
    if (!answer) return fk_fail(err, FK_NO_MEMORY, "no memory for a tuning record");
    fk_status status = make_query(p, device, options, advice, spelling, &query, err);
    if (status == FK_OK) status = ask(&query, advice, answer, err);
    *found = status == FK_OK && answer->found;
    free(answer);
    return status;
}

fk_status fk_advice_is_tuned(const fk_problem *p, const fk_device_info *device, const fk_plan_options *options,
                             const fk_advice *advice, int32_t rigor, bool *tuned, fk_error *err) {
    char spelling[FK_MAX_SPELLING];
    fk_tuning_query query;
    fk_tuning_text own = {NULL, 0};
    fk_status status = make_query(p, device, options, advice, spelling, &query, err);
    if (status == FK_OK) status = fk_tuning_load_dir(&fk_vfs_posix, advice->dir, true, &own, err);
    *tuned = status == FK_OK && fk_tuning_has(own.bytes, own.size, &query, &options->shape, rigor);
    free(own.bytes);
    return status;
}

fk_status fk_plan_advised(const fk_problem *p, const fk_device_info *device, const fk_plan_options *options,
                          const fk_advice *advice, fk_plan_info **plans, size_t *count, fk_error *err) {
    static const fk_plan_options defaults = FK_PLAN_OPTIONS_INIT;
    char spelling[FK_MAX_SPELLING];
    fk_tuning_query query;
    if (!options) options = &defaults;
    candidates c = {NULL, 0};
    fk_status status = options->reproducible ? FK_OK : fk_advice_check_environment(err);
    if (status == FK_OK) status = fk_plan_enumerate(p, device, options, &c.plans, &c.count, err);
    if (status != FK_OK) return status;
    if (fk_advice_is_off(options)) {
        *plans = c.plans, *count = c.count;
        return FK_OK;
    }
    fk_tuning_answer *answer = malloc(sizeof *answer);
    if (!answer) status = fk_fail(err, FK_NO_MEMORY, "no memory for a tuning record");
    if (status == FK_OK) status = make_query(p, device, options, advice, spelling, &query, err);
    if (status == FK_OK) {
        query.accepts = accepts;
        query.user = &c;
        status = ask(&query, advice, answer, err);
    }
    if (status == FK_OK && answer->found) {
        const bool timed = answer->record.rigor != FK_RIGOR_MODEL;
        fk_plan_promote(c.plans, find(&c, answer->record.plan),
                        !timed                ? FK_CHOSEN_BY_MODELLED_RECORD
                        : answer->source == 0 ? FK_CHOSEN_BY_RECORD
                                              : FK_CHOSEN_BY_SHIPPED_RECORD);
        explain(answer, c.plans);
    }
    free(answer);
    if (status != FK_OK)
        free(c.plans);
    else
        *plans = c.plans, *count = c.count;
    return status;
}

fk_status fk_plan_for_all(const fk_problem *p, const fk_device_info *device, const fk_plan_options *options,
                          const fk_advice *advice, fk_plan_info **plans, size_t *count, fk_error *err) {
    const fk_status status = fk_plan_advised(p, device, options, advice, plans, count, err);
    if (status != FK_OK || (*plans)[0].chosen == FK_CHOSEN_BY_CALLER) return status;
    size_t kept = 0;
    for (size_t i = 0; i < *count; i++)
        if (!(*plans)[i].head_rows) (*plans)[kept++] = (*plans)[i];
    *count = kept;
    if (!kept || !(*plans)[0].legal) { /* of templates of one's own */
        free(*plans);
        *plans = NULL;
        return fk_fail(err, FK_UNSUPPORTED, "no plan for all sizes fits %s: those that fit have head_rows",
                       device->name);
    }
    if (!(*plans)[0].chosen) (*plans)[0].chosen = FK_CHOSEN_BY_RULE;
    return FK_OK;
}
