/* Kernels that are asked for with sizes: which plan serves them where that for all sizes does not do as well. */
#include "kernel_for.h"

#include "gen/lua_host.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

bool fk_compiles_for_sizes(fk_context *context) {
    return !fk_packs_open(&context->packs) && context->cache_mode != FK_CACHE_SEALED;
}

fk_status fk_sized_plan_for_all(const fk_context *context, const fk_problem *canonical, fk_plan_info *out,
                                fk_error *err) {
    const fk_advice advice = fk_advice_of(context);
    fk_plan_info *plans;
    size_t count;
    const fk_status status =
        fk_plan_for_all(canonical, &context->planned, &context->planning, &advice, &plans, &count, err);
    if (status) return status;
    *out = plans[0];
    free(plans);
    return FK_OK;
}

int64_t fk_sized_group(const fk_sized *s, const fk_problem *canonical) {
    return canonical->gqa ? (int64_t)1 << s->group : 1;
}

fk_shape fk_sized_bucket(const fk_sized *s, const fk_problem *canonical) {
    const fk_buckets *buckets = fk_advice_buckets();
    const int64_t group = fk_sized_group(s, canonical);
    const int64_t heads = (int64_t)buckets->edge[2][s->bucket.index[2]] / group;
    fk_shape out = {.batch = 1, .num_heads_kv = heads ? heads : 1};
    out.num_heads_q = group * out.num_heads_kv;
    out.seqlen_q = (int64_t)buckets->edge[0][s->bucket.index[0]];
    out.seqlen_k = (int64_t)buckets->edge[1][s->bucket.index[1]];
    return out;
}

bool fk_sized_plan_packed(const fk_sized *s, const fk_problem *canonical, fk_plan_info *out) {
    fk_kernel *kernel;
    fk_error err;
    if (!fk_asks_packs(s->context) ||
        fk_table_find(&s->context->table, canonical, 0, fk_kernel_build_for_all, s->context, &kernel, &err))
        return false;
    *out = kernel->info.plan;
    return kernel->info.from_store == 2;
}

/* Without a class a kernel is kept for a whole bucket of sizes, of which a plan for short rows may not serve all. */
static bool serves(const fk_sized *s, const fk_plan_info *plan) {
    return !plan->head_rows || s->class.is_short;
}

/* The plan that a record names for these sizes; `*found`: there is one that fits. A pack is there to spare compiling:
 * what came with the library gives way to it. */
static fk_status recorded_plan(const fk_sized *s, const fk_problem *canonical, const fk_plan_options *planning,
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
                        (out->chosen == FK_CHOSEN_BY_SHIPPED_RECORD && fk_compiles_for_sizes(context));
    *found = counts && serves(s, out) && out->smem_bytes <= context->runs.smem_per_block;
    free(plans);
    return FK_OK;
}

/* The model's plan for few queries, which would leave the warps of a large tile idle: one more kernel is compiled where
 * that for all sizes would take so many times as long, and so many microseconds more in each launch. */
static fk_status plan_for_few(const fk_sized *s, const fk_problem *canonical, const fk_plan_options *planning,
                              fk_plan_info *out, bool *found, fk_error *err) {
    static const double times = 1.5, more_us = 20.0;
    const fk_context *context = s->context;
    fk_plan_info of_all, *plans;
    size_t count;
    fk_status status = fk_sized_plan_for_all(context, canonical, &of_all, err);
    if (status) return status;
    *found = 2 * s->shape->seqlen_q <= of_all.block_m;
    if (!*found) return FK_OK;
    status = fk_plan_enumerate(canonical, &context->planned, planning, &plans, &count, err);
    if (status) return status;
    const size_t at = fk_plan_find(plans, count, &of_all);
    *out = plans[0];
    *found = at < count && plans[at].legal && serves(s, out) &&
             plans[at].model_us > fmax(times * out->model_us, out->model_us + more_us) &&
             out->smem_bytes <= context->runs.smem_per_block;
    free(plans);
    return FK_OK;
}

/* Where the compiler spills registers after all, the kernel for all sizes stands in, so that it is asked once. */
static fk_status build_asked(void *user, const fk_problem *canonical, fk_kernel **out, fk_error *err) {
    const fk_asked *a = user;
    const fk_status status = *a->packed ? fk_kernel_build_packed(a->context, canonical, a->packed, out, err)
                                        : fk_kernel_build(a->context, canonical, &a->plan, out, err);
    if (status) return status;
    const fk_image_info *image = &(*out)->info.image;
    (*out)->variant = a->variant;
    if (fk_build_flaws(image->spill_bytes, image->serialized_wgmma) <= fk_minor_spill(canonical, &a->plan))
        return FK_OK;
    fk_kernel *for_all; /* where it cannot be had, what is at hand is right, only slower */
    if (fk_table_find(&a->context->table, canonical, 0, fk_kernel_build_for_all, a->context, &for_all, NULL))
        return FK_OK;
    fk_kernel_free(*out);
    *out = for_all;
    return FK_OK;
}

/* Backward, turns keep warpgroups half a visit apart: that costs each row, and gains in each visit. Do these sizes want
 * the other choice than that for all sizes? The bucket says so here, too. */
static fk_status wants_other_turns(const fk_sized *s, const fk_problem *canonical, fk_asked *ask, bool *out,
                                   fk_error *err) {
    fk_plan_options planning = s->context->planning;
    fk_plan_info plan, other, *plans;
    size_t count;
    *out = false;
    if (canonical->op != FK_BACKWARD || !fk_compiles_for_sizes(s->context)) return FK_OK;
    fk_status status = fk_sized_plan_for_all(s->context, canonical, &plan, err);
    if (status || !plan.k_stages) return status; /* family mma knows no turns */
    other = plan;
    other.turns = !plan.turns;
    planning.shape = fk_sized_bucket(s, canonical);
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
    *ask = (fk_asked){.context = s->context, .plan = other, .variant = FK_OTHER_TURNS};
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

/* The model's plan for rows of few tiles, or for few heads. */
static fk_status plan_for_short(const fk_sized *s, const fk_problem *canonical, fk_asked *ask, bool *found,
                                fk_error *err) {
    fk_context *context = s->context;
    fk_plan_options planning = context->planning;
    fk_plan_info of_all, *plans;
    size_t count;
    *found = false;
    if (!s->class.is_short || !fk_compiles_for_sizes(context)) return FK_OK;
    fk_status status = fk_sized_plan_for_all(context, canonical, &of_all, err);
    if (status || !of_all.k_stages) return status; /* family mma */
    planning.shape = fk_short_shape(canonical, &s->class, fk_sized_group(s, canonical), context->planned.num_sms);
    status = fk_plan_enumerate(canonical, &context->planned, &planning, &plans, &count, err);
    if (status) return status;
    fk_plan_info other = of_all;
    other.turns = !of_all.turns; /* which wants_other_turns would give */
    if (fk_plan_find(plans, count, &other) < fk_plan_find(plans, count, &of_all)) of_all = other;
    const fk_plan_info *best =
        fk_short_choose(canonical, &s->class, plans, count, &of_all, context->runs.smem_per_block);
    *found = best != NULL;
    if (best)
        *ask = (fk_asked){.context = context, .plan = *best, .variant = FK_OTHER_TILE - rank_of(plans, count, best)};
    free(plans);
    return FK_OK;
}

/* Is the model's best plan for decoding, of `plans`, worth another kernel than that for all sizes? On Hopper, bound by
 * HBM, if its tile is the smallest, whatever it gains, as such kernels are launched over and over, and measured they
 * gain twice what the model says (1 to 8 %). With `split`, where it takes 0.97 of the time: measured 0.73 to 0.87. */
static bool decodes_better(const fk_problem *canonical, const fk_plan_info *plans, size_t count,
                           const fk_plan_info *of_all) {
    static const int64_t rows = 64;
    static const double worth = 0.97;
    const fk_plan_info *best = &plans[0];
    if (canonical->split) {
        const size_t at = fk_plan_find(plans, count, of_all);
        return at > 0 && at < count && plans[at].legal && best->model_us < worth * plans[at].model_us;
    }
    return strcmp(of_all->family, "wgmma") == 0 && of_all->block_m > rows && strcmp(best->family, "wgmma") == 0 &&
           best->block_m == rows && strcmp(best->bound, "hbm") == 0;
}

static fk_status plan_for_decoding(const fk_sized *s, const fk_problem *canonical, fk_asked *ask, bool *found,
                                   fk_error *err) {
    static const int64_t queries = 16, keys = 512;
    fk_context *context = s->context;
    fk_plan_options planning = context->planning;
    fk_plan_info of_all, *plans;
    size_t count;
    planning.shape = fk_sized_bucket(s, canonical);
    *found = false;
    if (canonical->op != FK_FORWARD || canonical->packed || planning.shape.seqlen_q > queries ||
        planning.shape.seqlen_k < keys || !fk_compiles_for_sizes(context))
        return FK_OK;
    fk_status status = fk_sized_plan_for_all(context, canonical, &of_all, err);
    if (!status) status = fk_plan_enumerate(canonical, &context->planned, &planning, &plans, &count, err);
    if (status) return status;
    *found = decodes_better(canonical, plans, count, &of_all) && plans[0].smem_bytes <= context->runs.smem_per_block;
    *ask = (fk_asked){.context = context, .plan = plans[0], .variant = FK_OTHER_TILE - rank_of(plans, count, plans)};
    free(plans);
    return FK_OK;
}

/* The same from a pack, which tells for rows of as many keys as queries what was planned when it was made. */
static bool packed_for_short(const fk_sized *s, const fk_problem *canonical, fk_asked *ask) {
    fk_context *context = s->context;
    if (!s->class.is_short || !s->class.square || !fk_asks_packs(context)) return false;
    const fk_pack_query query = fk_pack_query_of(context, canonical, NULL);
    const int number = fk_packs_find_short(&context->packs, &query, &s->class, ask->packed);
    ask->context = context;
    ask->variant = FK_PACKED_TILE - number;
    fk_error err;
    return number > 0 && fk_plan_read(ask->packed, &ask->plan, &err) == FK_OK;
}

/* ---- which one ---- */

/* `*found`: the plan is of this bucket alone; `*shared`: other sizes may ask for the same kernel. Neither: that for all
 * sizes. Sealed, or where there is no Lua, there is nothing to plan with. */
static fk_status choose(const fk_sized *s, const fk_problem *canonical, fk_plan_info *plan, fk_asked *ask, bool *found,
                        bool *shared, fk_error *err) {
    static const int64_t few = 128; /* half of the largest tile of queries */
    fk_plan_options planning = s->context->planning;
    fk_status status = FK_OK;
    *found = *shared = false;
    planning.shape = *s->shape;
    if (s->context->cache_mode != FK_CACHE_SEALED && fk_lua_library(NULL) == FK_OK)
        status = recorded_plan(s, canonical, &planning, plan, found, err);
    if (status || *found) return status;
    fk_asked of_short = {0};
    bool is_short;
    status = plan_for_short(s, canonical, &of_short, &is_short, err);
    if (!status && !is_short) is_short = packed_for_short(s, canonical, &of_short);
    if (!status) status = fk_wants_parts(s, canonical, is_short ? &of_short.plan : NULL, ask, shared, err);
    if (!status && !*shared && is_short) {
        *ask = of_short;
        *shared = true;
    }
    if (!status && !*shared) status = fk_wants_key_parts(s, canonical, ask, shared, err);
    if (!status && !*shared) status = plan_for_decoding(s, canonical, ask, shared, err);
    if (!status && !*shared && s->shape->seqlen_q <= few && fk_compiles_for_sizes(s->context))
        status = plan_for_few(s, canonical, &planning, plan, found, err);
    if (!status && !*found && !*shared) status = wants_other_turns(s, canonical, ask, shared, err);
    return status;
}

/* Then a pack, or the store, may have the one for all sizes. */
static bool cannot_compile(fk_status status) {
    return status == FK_NO_JIT || status == FK_NO_COMPILER;
}

static fk_status build_for(void *user, const fk_problem *canonical, fk_kernel **out, fk_error *err) {
    const fk_sized *s = user;
    fk_plan_info plan;
    fk_asked ask = {0};
    bool found, shared;
    fk_status status = choose(s, canonical, &plan, &ask, &found, &shared, err);
    if (status) return status;
    if (shared) {
        status = fk_table_find(&s->context->table, canonical, ask.variant, build_asked, &ask, out, err);
        if (!cannot_compile(status)) return status;
    }
    status = found ? fk_kernel_build(s->context, canonical, &plan, out, err) : FK_NO_JIT;
    if (cannot_compile(status))
        return fk_table_find(&s->context->table, canonical, 0, fk_kernel_build_for_all, s->context, out, err);
    if (!status) (*out)->variant = s->variant;
    return status;
}

/* 1 and more: a bucket of sizes, a class of groups, and one of short rows. */
static int32_t variant_of(const fk_sized *s, const fk_buckets *buckets) {
    int32_t out = 0;
    for (int i = 0; i < FK_BUCKET_AXES; i++)
        out = out * buckets->count[i] + s->bucket.index[i];
    out = out * FK_SIZED_GROUPS + s->group;
    const fk_short_class *c = &s->class;
    const int32_t row = (int32_t)(c->q / FK_SHORT_STEP) - 1;
    const int32_t class = c->is_short ? 1 + (2 * row + c->square) * FK_SHORT_HALVES + c->half : 0;
    return 1 + (out * (1 + 2 * FK_SHORT_ROWS * FK_SHORT_HALVES) + class) * 2 + s->above;
}

/* `out`: where the result is to be. */
static fk_status check_call(const fk_context *context, const fk_problem *problem, const fk_shape *shape,
                            const void *out) {
    if (!context || !problem || !shape || !out)
        return fk_refuse(FK_BAD_ARGUMENT, "%s is null",
                         !context   ? "context"
                         : !problem ? "problem"
                         : !shape   ? "shape"
                                    : "out");
    if (shape->batch >= 1 && shape->num_heads_q >= 1 && shape->num_heads_kv >= 1 && shape->seqlen_q >= 1 &&
        shape->seqlen_k >= 1)
        return FK_OK;
    return fk_refuse(FK_BAD_ARGUMENT, "shape is %lld, %lld, %lld, %lld, %lld: each must be at least 1",
                     (long long)shape->batch, (long long)shape->num_heads_q, (long long)shape->num_heads_kv,
                     (long long)shape->seqlen_q, (long long)shape->seqlen_k);
}

static fk_sized sized_of(fk_context *context, const fk_problem *problem, const fk_shape *shape) {
    fk_sized s = {.context = context,
                  .shape = shape,
                  .bucket = fk_bucket_of(fk_advice_buckets(), shape),
                  .class = fk_short_class_of(problem, shape, context->planned.num_sms)};
    if (!s.class.square) { /* a program that decodes shall not meet a new class every 64 tokens */
        const fk_buckets *buckets = fk_advice_buckets();
        const int at = s.bucket.index[1], next = at + 1 < buckets->count[1] ? at + 1 : at;
        const double *edge = buckets->edge[1];
        s.above = problem->op == FK_BACKWARD && (double)shape->seqlen_k > edge[at];
        s.class.k = (int64_t)(s.above ? sqrt(edge[at] * edge[next]) : edge[at]); /* where the bucket ends */
    }
    for (int64_t heads = shape->num_heads_q / shape->num_heads_kv; heads > 1 && s.group < FK_SIZED_GROUPS - 1;
         heads /= 2)
        s.group++;
    s.variant = variant_of(&s, fk_advice_buckets());
    return s;
}

fk_status fk_kernel_create_for(fk_context *context, const fk_problem *problem, const fk_shape *shape, fk_kernel **out) {
    fk_error err;
    const fk_status status = check_call(context, problem, shape, out);
    if (status) return status;
    if (fk_advice_is_off(&context->planning)) return fk_kernel_create(context, problem, out);
    fk_sized s = sized_of(context, problem, shape);
    fk_kernel *kernel;
    if (fk_table_find(&context->table, problem, s.variant, build_for, &s, &kernel, &err)) {
        fk_count(&context->counts.failed);
        return fk_report(&err);
    }
    fk_context_retain(context);
    *out = kernel;
    return FK_OK;
}

fk_status fk_plan_for(fk_context *context, const fk_problem *problem, const fk_shape *shape, fk_plan_info *out) {
    fk_error err;
    fk_problem canonical;
    fk_plan_info plan = {0};
    fk_asked ask = {0};
    bool found = false, shared = false;
    fk_status status = check_call(context, problem, shape, out);
    if (status) return status;
    const fk_sized s = sized_of(context, problem, shape);
    status = fk_problem_normalise(problem, &canonical, &err);
    if (!status && !fk_advice_is_off(&context->planning))
        status = choose(&s, &canonical, &plan, &ask, &found, &shared, &err);
    if (!status && shared && *ask.packed) status = fk_plan_read(ask.packed, &plan, &err);
    if (!status && shared && !*ask.packed) plan = ask.plan;
    if (!status && !shared && !found && !fk_sized_plan_packed(&s, &canonical, &plan))
        status = fk_sized_plan_for_all(context, &canonical, &plan, &err);
    if (status) return fk_report(&err);
    *out = plan;
    return FK_OK;
}
