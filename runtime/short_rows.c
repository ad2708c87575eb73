/* Classes of short rows, and the model's plan for each. */
#include "short_rows.h"

#include <math.h>

static int64_t steps(int64_t seqlen) {
    return (seqlen + FK_SHORT_STEP - 1) / FK_SHORT_STEP;
}

/* Where a tile of queries ends, and how many rounds of tiles the SMs have, is what one tile does better than another,
 * so that queries and heads have fine classes. */
fk_short_class fk_short_class_of(const fk_problem *problem, const fk_shape *shape) {
    fk_short_class c = {.is_short = problem->struct_size == sizeof *problem && problem->op == FK_FORWARD &&
                                    !problem->packed && !problem->split &&
                                    shape->seqlen_q <= FK_SHORT_STEP * FK_SHORT_ROWS};
    if (!c.is_short) return c;
    const double halves = 2 * log2((double)shape->batch * (double)shape->num_heads_q);
    c.square = steps(shape->seqlen_q) == steps(shape->seqlen_k);
    c.q = steps(shape->seqlen_q) * FK_SHORT_STEP;
    c.k = c.square ? c.q : 0;
    c.half = halves < FK_SHORT_HALVES - 1 ? (int32_t)lround(halves) : FK_SHORT_HALVES - 1;
    return c;
}

fk_shape fk_short_shape(const fk_short_class *c, int64_t ratio) {
    const int64_t group = ratio > 0 ? ratio : 1, heads = llround(exp2(c->half / 2.0)) / group;
    return (fk_shape){1, group * (heads ? heads : 1), heads ? heads : 1, c->q, c->k};
}

/* One more kernel where that for all sizes would take so many times as long, and so many microseconds more in each
 * launch: of rows of few tiles, of which the last one may be nearly empty, or for so few heads that SMs have none.
 * Measured on an H100, 341 cases of 50 to 2,048 queries for which the model says so: 0.81 of the time in the mean, 12
 * of them more than 1.02 (docs/performance-log.md). Of its plans of family mma, and of the backward pass, that is not
 * so. */
const fk_plan_info *fk_short_choose(const fk_plan_info *plans, size_t count, const fk_plan_info *for_all, int smem) {
    static const double times = 1.1, more_us = 2.0;
    if (!for_all->k_stages) return NULL; /* family mma */
    const size_t at = fk_plan_find(plans, count, for_all);
    const fk_plan_info *best = plans; /* the first of family wgmma, as that for all sizes is one */
    while (best < plans + at && !best->k_stages)
        best++;
    const bool gains = at < count && plans[at].legal && best->smem_bytes <= smem &&
                       plans[at].model_us > fmax(times * best->model_us, best->model_us + more_us);
    return gains ? best : NULL;
}
