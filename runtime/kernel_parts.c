/* Kernels whose tiles come in parts (parts.c): for which sizes one is worth compiling. */
#include "kernel_for.h"
#include "parts.h"

#include <stdlib.h>

enum { SMALLER_ROWS = 128 }; /* of a tile, where few want parts */

/* Parts of few queries, whose tiles wait for HBM, want tiles of as many rows, and up to 256 queries two of 128, which
 * are shared among more SMs; and so do parts of few tiles: of these the model's best for them, whose warpgroups take
 * turns if there are several. Measured on an H100 (docs/performance-log.md): 0.78 to 0.95 of the time. `plan` stays
 * where it is as small. */
static fk_status plan_smaller_parts(const fk_sized *s, const fk_problem *canonical, int32_t rows, fk_plan_info *plan,
                                    int32_t *variant, fk_error *err) {
    fk_plan_options planning = s->context->planning;
    fk_plan_info *plans;
    size_t count;
    if (plan->block_m <= rows && fk_plan_may_have_parts(canonical, plan, s->context->template_dir)) return FK_OK;
    planning.shape = (fk_shape){1, 1, 1, rows, 32768};
    const fk_status status = fk_plan_enumerate(canonical, &s->context->planned, &planning, &plans, &count, err);
    if (status) return status;
    for (size_t i = 0; i < count && plans[i].legal; i++) {
        if (plans[i].block_m != rows || plans[i].turns != (rows > 64) ||
            plans[i].smem_bytes > s->context->runs.smem_per_block ||
            !fk_plan_may_have_parts(canonical, &plans[i], s->context->template_dir))
            continue;
        *plan = plans[i];
        *variant = rows == 64 ? FK_PARTS_OF_64 : FK_PARTS_OF_128;
        break;
    }
    free(plans);
    return FK_OK;
}

/* A kernel of that plan whose tiles come in parts; `*out`: it can be had. */
static fk_status ask_for_parts(const fk_sized *s, const fk_problem *canonical, const fk_plan_info *plan,
                               int32_t variant, fk_asked *ask, bool *out) {
    *out = fk_plan_may_have_parts(canonical, plan, s->context->template_dir);
    *ask = (fk_asked){.context = s->context, .plan = fk_plan_in_parts(canonical, plan), .variant = variant};
    if (fk_compiles_for_sizes(s->context) || !*out) return FK_OK;
    fk_plan_write(&ask->plan, ask->packed);
    const fk_pack_query query = fk_pack_query_of(s->context, canonical, ask->packed);
    *out = fk_packs_have(&s->context->packs, &query);
    return FK_OK;
}

/* The plan that has parts, if the problem may; `*found`: it may. */
static fk_status plan_of_parts(const fk_sized *s, const fk_problem *canonical, int32_t op, fk_plan_info *plan,
                               bool *found, fk_error *err) {
    *found = canonical->op == op && fk_problem_may_have_parts(canonical, s->context->template_dir);
    if (!*found) return FK_OK;
    if (fk_compiles_for_sizes(s->context)) return fk_sized_plan_for_all(s->context, canonical, plan, err);
    *found = fk_sized_plan_packed(s, canonical, plan);
    return FK_OK;
}

/* Backward, few kv heads: the tiles of all heads are fewer than SMs, or few rounds of them, so that they come in parts
 * of the group's heads and of the queries, if those of the bucket do, or of half its heads: as whole tiles they take
 * 1.01 of the time. */
fk_status fk_wants_key_parts(const fk_sized *s, const fk_problem *canonical, fk_asked *ask, bool *out, fk_error *err) {
    const fk_shape shape = fk_sized_bucket(s, canonical);
    const int64_t half = shape.num_heads_kv > 1 ? shape.num_heads_kv / 2 : 1;
    const fk_shape fewer = {shape.batch, half * (shape.num_heads_q / shape.num_heads_kv), half, shape.seqlen_q,
                            shape.seqlen_k};
    fk_plan_info plan;
    const fk_status status = plan_of_parts(s, canonical, FK_BACKWARD, &plan, out, err);
    if (status || !*out) return status;
    *out = fk_key_parts_choose(canonical, &plan, &s->context->runs, &shape, 0) > 1 ||
           fk_key_parts_choose(canonical, &plan, &s->context->runs, &fewer, 0) > 1;
    return *out ? ask_for_parts(s, canonical, &plan, FK_IN_PARTS, ask, out) : FK_OK;
}

/* What stands for these sizes where a tile more or less matters: classes of short rows are finer than buckets. */
static fk_shape few_heads(const fk_sized *s, const fk_problem *canonical) {
    if (!s->class.is_short) return fk_sized_bucket(s, canonical);
    return fk_short_shape(canonical, &s->class, fk_sized_group(s, canonical), s->context->planned.num_sms);
}

/* Is it worth its compile time? The bucket says so, as it must not matter which of its sizes are asked for first. */
fk_status fk_wants_parts(const fk_sized *s, const fk_problem *canonical, const fk_plan_info *instead, fk_asked *ask,
                         bool *out, fk_error *err) {
    const fk_buckets *buckets = fk_advice_buckets();
    const double seqlen_q = buckets->edge[0][s->bucket.index[0]], seqlen_k = buckets->edge[1][s->bucket.index[1]];
    const double heads = buckets->edge[2][s->bucket.index[2]];
    const fk_shape few = few_heads(s, canonical);
    fk_plan_info plan;
    fk_status status = plan_of_parts(s, canonical, FK_FORWARD, &plan, out, err);
    if (status || !*out) return status;
    const int32_t ctas = s->context->runs.num_sms / fk_plan_cluster(canonical, &plan);
    int32_t variant = FK_IN_PARTS;
    const bool pays = fk_parts_pay(canonical, &plan, ctas, heads, seqlen_q, seqlen_k);
    const bool compiles = fk_compiles_for_sizes(s->context);
    *out = pays || ((compiles || plan.block_m <= SMALLER_ROWS) && fk_tiles_alone(&few, SMALLER_ROWS, ctas));
    if (*out && (!pays || seqlen_q <= 2 * SMALLER_ROWS) && compiles)
        status = plan_smaller_parts(s, canonical, seqlen_q <= 64 ? 64 : SMALLER_ROWS, &plan, &variant, err);
    if (status || !*out) return status;
    *out = pays ? 2 * seqlen_q > plan.block_m || 2 * heads <= s->context->runs.num_sms /* else still smaller tiles do */
                : fk_parts_pay_alone(canonical, &plan, instead, ctas, &few);
    return *out ? ask_for_parts(s, canonical, &plan, variant, ask, out) : FK_OK;
}
