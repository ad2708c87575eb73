/* Kernels that are asked for with sizes: which plan serves them where that for all sizes does not do as well. */
#include "object.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* A kernel that is asked for with sizes. */
typedef struct sized {
    fk_context *context;
    const fk_shape *shape;
    fk_bucket bucket;
    bool is_short, square; /* plan_for_short may have a plan for it; there are as many keys as queries: */
    int64_t q, k;          /* rows that stand for those of its class */
    int32_t half;          /* heads, in half octaves */
    int32_t variant;
} sized;

/* The plan that serves all sizes. */
static fk_status plan_for_all(const fk_context *context, const fk_problem *canonical, fk_plan_info *out,
                              fk_error *err) {
    const fk_advice advice = fk_advice_of(context);
    fk_plan_info *plans;
    size_t count;
    const fk_status status =
        fk_plan_advised(canonical, &context->planned, &context->planning, &advice, &plans, &count, err);
    if (status) return status;
    *out = plans[0];
    free(plans);
    return FK_OK;
}

/* The plan that a record names for these sizes; `*found`: there is one that fits. A pack is there to spare compiling:
 * what came with the library gives way to it. */
static fk_status recorded_plan(const sized *s, const fk_problem *canonical, const fk_plan_options *planning,
                               fk_plan_info *out, bool *found, fk_error *err) {
    fk_context *context = s->context;
    const fk_advice advice = fk_advice_of(context);
    fk_plan_info *plans;
    size_t count;
    fk_status status = fk_advice_find(canonical, &context->planned, planning, &advice, found, err);
    if (status || !*found) return status;
    status = fk_plan_advised(canonical, &context->planned, planning, &advice, &plans, &count, err);
    if (status) return status;
    *out = plans[0];
    const bool counts = out->chosen == FK_CHOSEN_BY_RECORD ||
                        (out->chosen == FK_CHOSEN_BY_SHIPPED_RECORD && !fk_packs_any(&context->packs));
    *found = counts && out->smem_bytes <= context->runs.smem_per_block;
    free(plans);
    return FK_OK;
}

/* The model's plan for few queries, which would leave the warps of a large tile idle: one more kernel is compiled where
 * that for all sizes would take so many times as long, and so many microseconds more in each launch. */
static fk_status plan_for_few(const sized *s, const fk_problem *canonical, const fk_plan_options *planning,
                              fk_plan_info *out, bool *found, fk_error *err) {
    static const double times = 1.5, more_us = 20.0;
    const fk_context *context = s->context;
    fk_plan_info of_all, *plans;
    size_t count;
    fk_status status = plan_for_all(context, canonical, &of_all, err);
    if (status) return status;
    *found = 2 * s->shape->seqlen_q <= of_all.block_m;
    if (!*found) return FK_OK;
    status = fk_plan_enumerate(canonical, &context->planned, planning, &plans, &count, err);
    if (status) return status;
    const size_t at = fk_plan_find(plans, count, &of_all);
    *out = plans[0];
    *found = at < count && plans[at].legal &&
             plans[at].model_us > fmax(times * out->model_us, out->model_us + more_us) &&
             out->smem_bytes <= context->runs.smem_per_block;
    free(plans);
    return FK_OK;
}

/* A kernel that several classes of sizes may ask for. */
typedef struct asked {
    fk_context *context;
    fk_plan_info plan;
    int32_t variant;
} asked;

/* Where the compiler spills registers after all, the kernel for all sizes stands in, so that it is asked once. */
static fk_status build_asked(void *user, const fk_problem *canonical, fk_kernel **out, fk_error *err) {
    const asked *a = user;
    const fk_status status = fk_kernel_build(a->context, canonical, &a->plan, out, err);
    if (status) return status;
    const fk_image_info *image = &(*out)->info.image;
    (*out)->variant = a->variant;
    if (fk_build_flaws(image->spill_bytes, image->serialized_wgmma) <= fk_minor_spill(canonical, &a->plan))
        return FK_OK;
    fk_kernel_free(*out);
    return fk_table_find(&a->context->table, canonical, 0, fk_kernel_build_for_all, a->context, out, err);
}

/* Is it worth its compile time? The bucket says so, as it must not matter which of its sizes are asked for first. */
static fk_status wants_parts(const sized *s, const fk_problem *canonical, asked *ask, bool *out, fk_error *err) {
    const fk_buckets *buckets = fk_advice_buckets();
    const double seqlen_q = buckets->edge[0][s->bucket.index[0]], seqlen_k = buckets->edge[1][s->bucket.index[1]];
    const double heads = buckets->edge[2][s->bucket.index[2]];
    fk_plan_info plan;
    *out = false;
    if (!fk_problem_may_have_parts(canonical) || fk_packs_any(&s->context->packs)) return FK_OK;
    const fk_status status = plan_for_all(s->context, canonical, &plan, err);
    if (status) return status;
    const bool few =
        2 * seqlen_q <= plan.block_m && 2 * heads > s->context->runs.num_sms; /* smaller tiles are better */
    *out = !few && fk_plan_may_have_parts(canonical, &plan) &&
           fk_parts_pay(canonical, &plan, s->context->runs.num_sms, heads, seqlen_q, seqlen_k);
    plan.parts = 1;
    *ask = (asked){s->context, plan, FK_IN_PARTS};
    return FK_OK;
}

/* Backward, turns keep warpgroups half a visit apart: that costs each row, and gains in each visit. Do these sizes want
 * the other choice than that for all sizes? The bucket says so here, too. */
static fk_status wants_other_turns(const sized *s, const fk_problem *canonical, asked *ask, bool *out, fk_error *err) {
    const fk_buckets *buckets = fk_advice_buckets();
    fk_plan_options planning = s->context->planning;
    fk_plan_info plan, other, *plans;
    size_t count;
    *out = false;
    if (canonical->op != FK_BACKWARD || fk_packs_any(&s->context->packs)) return FK_OK;
    fk_status status = plan_for_all(s->context, canonical, &plan, err);
    if (status || !plan.k_stages) return status; /* family mma knows no turns */
    other = plan;
    other.turns = !plan.turns;
    const int64_t ratio = canonical->gqa ? s->shape->num_heads_q / s->shape->num_heads_kv : 1;
    const int64_t group = ratio ? ratio : 1, heads = (int64_t)buckets->edge[2][s->bucket.index[2]] / group;
    planning.shape.batch = 1;
    planning.shape.num_heads_kv = heads ? heads : 1;
    planning.shape.num_heads_q = group * planning.shape.num_heads_kv;
    planning.shape.seqlen_q = (int64_t)buckets->edge[0][s->bucket.index[0]];
    planning.shape.seqlen_k = (int64_t)buckets->edge[1][s->bucket.index[1]];
    status = fk_plan_enumerate(canonical, &s->context->planned, &planning, &plans, &count, err);
    if (status) return status;
    for (size_t i = 0; i < count && plans[i].legal; i++) { /* in the model's order */
        if (fk_plan_equal(&plans[i], &plan)) break;
        if (fk_plan_equal(&plans[i], &other)) {
            *out = true;
            break;
        }
    }
    free(plans);
    *ask = (asked){s->context, other, FK_OTHER_TURNS};
    return FK_OK;
}

/* ---- short rows ---- */

/* How many of the candidates come before one in the order of their lines: a number that no size changes. */
static int32_t rank_of(const fk_plan_info *plans, size_t count, const fk_plan_info *plan) {
    char line[FK_MAX_PLAN], other[FK_MAX_PLAN];
    int32_t rank = 0;
    fk_plan_write(plan, line);
    for (size_t i = 0; i < count; i++) {
        fk_plan_write(&plans[i], other);
        rank += strcmp(other, line) < 0;
    }
    return rank;
}

enum { LONGEST_SHORT = 2048, ROWS = 64, MOST_ROWS = LONGEST_SHORT / ROWS, MOST_HALVES = 31 };

static int64_t in_rows(int64_t seqlen) {
    return (seqlen + ROWS - 1) / ROWS;
}

/* The class of short rows that sizes are in. Where a tile of queries ends, and how many rounds of tiles the SMs have,
 * is what one tile does better than another, so that queries and heads have fine classes. Keys are as many, or their
 * bucket tells: a program that decodes shall not meet a new class every 64 tokens. */
static void find_class(sized *s, const fk_problem *problem) {
    const fk_shape *shape = s->shape;
    s->is_short = problem->struct_size == sizeof *problem && problem->op == FK_FORWARD && !problem->packed &&
                  !problem->split && shape->seqlen_q <= LONGEST_SHORT;
    if (!s->is_short) return;
    s->square = in_rows(shape->seqlen_q) == in_rows(shape->seqlen_k);
    s->q = in_rows(shape->seqlen_q) * ROWS;
    s->k = s->square ? s->q : (int64_t)fk_advice_buckets()->edge[1][s->bucket.index[1]];
    const double halves = 2 * log2((double)shape->batch * (double)shape->num_heads_q);
    s->half = halves < MOST_HALVES ? (int32_t)lround(halves) : MOST_HALVES;
}

/* The model's plan for rows of few tiles, of which the last one may be nearly empty, or for so few heads that SMs have
 * none: one more kernel where that for all sizes would take so many times as long, and so many microseconds more in
 * each launch. Measured on an H100, 341 cases of 50 to 2,048 queries for which the model says so: 0.81 of the time in
 * the mean, 12 of them more than 1.02 (docs/performance-log.md). Of its plans of family mma, and of the backward pass,
 * that is not so. */
static fk_status plan_for_short(const sized *s, const fk_problem *canonical, asked *ask, bool *found, fk_error *err) {
    static const double times = 1.1, more_us = 2.0;
    fk_context *context = s->context;
    fk_plan_options planning = context->planning;
    fk_plan_info of_all, *plans;
    size_t count;
    *found = false;
    if (!s->is_short || fk_packs_any(&context->packs)) return FK_OK;
    fk_status status = plan_for_all(context, canonical, &of_all, err);
    if (status || !of_all.k_stages) return status; /* family mma */
    const int64_t ratio = canonical->gqa ? s->shape->num_heads_q / s->shape->num_heads_kv : 1;
    const int64_t group = ratio ? ratio : 1, heads = llround(exp2(s->half / 2.0)) / group;
    planning.shape = (fk_shape){1, group * (heads ? heads : 1), heads ? heads : 1, s->q, s->k};
    status = fk_plan_enumerate(canonical, &context->planned, &planning, &plans, &count, err);
    if (status) return status;
    const size_t at = fk_plan_find(plans, count, &of_all);
    const fk_plan_info *best = plans; /* the first of family wgmma, as that for all sizes is one */
    while (best < plans + at && !best->k_stages)
        best++;
    *found = at < count && plans[at].legal && best->smem_bytes <= context->runs.smem_per_block &&
             plans[at].model_us > fmax(times * best->model_us, best->model_us + more_us);
    if (*found) *ask = (asked){s->context, *best, FK_OTHER_TILE - rank_of(plans, count, best)};
    free(plans);
    return FK_OK;
}

/* ---- which one ---- */

static fk_status build_for(void *user, const fk_problem *canonical, fk_kernel **out, fk_error *err) {
    static const int64_t few = 128; /* half of the largest tile of queries */
    const sized *s = user;
    fk_plan_options planning = s->context->planning;
    fk_plan_info plan;
    asked ask;
    bool found, shared = false;
    planning.shape = *s->shape;
    fk_status status = recorded_plan(s, canonical, &planning, &plan, &found, err);
    if (!status && !found) status = wants_parts(s, canonical, &ask, &shared, err);
    if (!status && !found && !shared) status = plan_for_short(s, canonical, &ask, &shared, err);
    if (!status && !found && !shared && s->shape->seqlen_q <= few && !fk_packs_any(&s->context->packs))
        status = plan_for_few(s, canonical, &planning, &plan, &found, err);
    if (!status && !found && !shared) status = wants_other_turns(s, canonical, &ask, &shared, err);
    if (status) return status;
    if (shared) {
        status = fk_table_find(&s->context->table, canonical, ask.variant, build_asked, &ask, out, err);
        if (status != FK_NO_JIT) return status;
    }
    status = found ? fk_kernel_build(s->context, canonical, &plan, out, err) : FK_NO_JIT;
    if (status == FK_NO_JIT) /* a pack, or the store, may have the one for all sizes */
        return fk_table_find(&s->context->table, canonical, 0, fk_kernel_build_for_all, s->context, out, err);
    if (!status) (*out)->variant = s->variant;
    return status;
}

/* 1 and more: a bucket of sizes, and a class of short rows. */
static int32_t variant_of(const sized *s, const fk_buckets *buckets) {
    int32_t out = 0;
    for (int i = 0; i < FK_BUCKET_AXES; i++)
        out = out * buckets->count[i] + s->bucket.index[i];
    const int32_t row = (int32_t)(s->q / ROWS) - 1;
    const int32_t class = s->is_short ? 1 + (2 * row + s->square) * (MOST_HALVES + 1) + s->half : 0;
    return 1 + out * (1 + 2 * MOST_ROWS * (MOST_HALVES + 1)) + class;
}

fk_status fk_kernel_create_for(fk_context *context, const fk_problem *problem, const fk_shape *shape, fk_kernel **out) {
    fk_error err;
    if (!context || !problem || !shape || !out)
        return fk_refuse(FK_BAD_ARGUMENT, "%s is null",
                         !context   ? "context"
                         : !problem ? "problem"
                         : !shape   ? "shape"
                                    : "out");
    if (shape->batch < 1 || shape->num_heads_q < 1 || shape->num_heads_kv < 1 || shape->seqlen_q < 1 ||
        shape->seqlen_k < 1)
        return fk_refuse(FK_BAD_ARGUMENT, "shape is %lld, %lld, %lld, %lld, %lld: each must be at least 1",
                         (long long)shape->batch, (long long)shape->num_heads_q, (long long)shape->num_heads_kv,
                         (long long)shape->seqlen_q, (long long)shape->seqlen_k);
    if (fk_advice_is_off(&context->planning) || context->cache_mode == FK_CACHE_SEALED) /* records need Lua */
        return fk_kernel_create(context, problem, out);
    sized s = {.context = context, .shape = shape, .bucket = fk_bucket_of(fk_advice_buckets(), shape)};
    find_class(&s, problem);
    s.variant = variant_of(&s, fk_advice_buckets());
    fk_kernel *kernel;
    if (fk_table_find(&context->table, problem, s.variant, build_for, &s, &kernel, &err)) return fk_report(&err);
    fk_context_retain(context);
    *out = kernel;
    return FK_OK;
}
