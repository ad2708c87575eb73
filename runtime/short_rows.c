/* Classes of short rows, and the model's plan for each. */
#include "short_rows.h"

#include <math.h>

#define BELOW_LAST 15 /* rows: 113 stand for 65 to 128, which are as many tiles of any kind as 128 */

static int64_t steps(int64_t seqlen) {
    return seqlen / FK_SHORT_STEP + (seqlen % FK_SHORT_STEP != 0);
}

int fk_short_rows_of(const fk_problem *p) {
    if (p->op == FK_BACKWARD) return p->gqa ? 0 : FK_SHORT_BACK;
    return p->split ? 0 : p->packed ? FK_SHORT_PACKED : FK_SHORT_ROWS;
}

/* Backward, by rounds of the SMs. Of heads that are less than half of one, whose CTAs leave SMs idle, fewer are another
 * matter: a CTA takes its time for all keys of a head, however few CTAs there are. */
static double class_of_rounds(double rounds) {
    return rounds <= 0.125 ? 0 : rounds <= 0.25 ? 1 : ceil(2 * rounds) + 1;
}

static double rounds_of_class(int class) {
    return class == 0 ? 0.08 : class == 1 ? 0.19 : (class - 1 - 0.3) / 2;
}

/* Where a tile of queries ends, and how many rounds of tiles the SMs have, is what one tile does better than another,
 * so that queries and heads have fine classes. */
fk_short_class fk_short_class_of(const fk_problem *problem, const fk_shape *shape, int num_sms) {
    fk_short_class c = {.square = steps(shape->seqlen_q) == steps(shape->seqlen_k)};
    c.is_short = problem->struct_size == sizeof *problem && (c.square || !problem->packed) &&
                 shape->seqlen_q <= FK_SHORT_STEP * fk_short_rows_of(problem);
    if (!c.is_short) return (fk_short_class){0};
    const double heads = (double)shape->batch * (double)shape->num_heads_q;
    const double halves = problem->op == FK_FORWARD ? round(2 * log2(heads)) : class_of_rounds(heads / num_sms);
    c.q = steps(shape->seqlen_q) * FK_SHORT_STEP;
    c.k = c.square ? c.q : 0;
    c.half = halves < FK_SHORT_HALVES - 1 ? (int32_t)halves : FK_SHORT_HALVES - 1;
    return c;
}

/* Of half a round the middle, or a little more; of rows that are all alike forward fewer than q, as there what HBM
 * takes hides what tiles take; of packed sequences, the longest of which has q rows, backward nine sixteenths of them:
 * forward the model takes the longest. */
fk_shape fk_short_shape(const fk_problem *problem, const fk_short_class *c, int64_t ratio, int num_sms) {
    const double heads = problem->op == FK_FORWARD ? exp2(c->half / 2.0) : rounds_of_class(c->half) * num_sms;
    const int64_t group = ratio > 0 ? ratio : 1, kv_heads = llround(heads) / group;
    const int64_t heads_kv = kv_heads > 0 ? kv_heads : 1;
    const bool forward = problem->op == FK_FORWARD;
    const int64_t of_16 = problem->packed && !forward ? 9 : 16, less = forward && !problem->packed ? BELOW_LAST : 0;
    const int64_t k = c->square ? c->k - less : c->k;
    return (fk_shape){1, group * heads_kv, heads_kv, (c->q - less) * of_16 / 16, k * of_16 / 16};
}

/* Packed forward, a tile or two of 64 rows a head, and few of them: the model knows less of what a lone tile waits for
 * than tiles differ. Measured on an H200 at head dims 128 and 256: tiles of 64 rows take 0.65 to 0.83 of the time. */
static const fk_plan_info *lone_packed(const fk_problem *p, const fk_short_class *class, const fk_plan_info *plans,
                                       size_t count, const fk_plan_info *for_all, int smem) {
    static const int rows = 64, halves = 16; /* of 256 heads, two rounds of the SMs */
    const bool lone = p->op == FK_FORWARD && p->packed && p->head_dim > 64 && class->q <= 2 * rows &&
                      class->half <= halves && for_all->block_m > rows;
    for (size_t i = 0; lone && i < count && plans[i].legal; i++)
        if (plans[i].k_stages && plans[i].block_m == rows && plans[i].smem_bytes <= smem) return &plans[i];
    return NULL;
}

/* Backward, rows of a few tiles and so few heads that each tile of 64 keys has an SM: of family mma eight warps begin
 * and end sooner than two warpgroups. Measured on an H200, 66 to 256 tokens of 4 to 16 heads, full, causal and with a
 * bias's gradient: 0.61 to 0.93 of the time at head dim 64, 0.67 to 1.03 at 128, and as long with 64 heads. */
static const fk_plan_info *lone_backward(const fk_problem *p, const fk_short_class *class, const fk_plan_info *plans,
                                         size_t count, int smem) {
    static const int rows = 256, dim = 128, quarter = 1; /* of a round of the SMs, by class_of_rounds */
    const int head_dim = p->head_dim > p->head_dim_v ? p->head_dim : p->head_dim_v;
    const bool lone = p->op == FK_BACKWARD && !p->packed && !p->deterministic && class->square && class->q <= rows &&
                      class->half <= quarter && head_dim <= dim;
    for (size_t i = 0; lone && i < count && plans[i].legal; i++)
        if (!plans[i].k_stages && plans[i].block_m == 64 && plans[i].block_n == 64 && plans[i].warps == 8 &&
            plans[i].smem_bytes <= smem)
            return &plans[i];
    return NULL;
}

/* One more kernel where that for all sizes would take so many times as long, and so many microseconds more in each
 * launch: of rows of few tiles, of which the last one may be nearly empty, or for so few heads that SMs have none.
 * Measured on an H100, 341 cases of 50 to 2,048 queries for which the model says so: 0.81 of the time in the mean, 12
 * of them more than 1.02 (docs/performance-log.md). Of its plans of family mma that is not so, nor backward, but of
 * those in which a CTA has all keys of a head, which the model knows to a tenth. Of packed sequences the longest has a
 * head that all others wait for, unless an SM has three heads for each four tiles of its keys. */
const fk_plan_info *fk_short_choose(const fk_problem *problem, const fk_short_class *class, const fk_plan_info *plans,
                                    size_t count, const fk_plan_info *for_all, int smem) {
    const bool backward = problem->op == FK_BACKWARD;
    const double times = problem->packed && !backward ? 1.07 : 1.05, more_us = 2.0;
    if (!for_all->k_stages) return NULL; /* family mma */
    const fk_plan_info *lone = lone_packed(problem, class, plans, count, for_all, smem);
    if (lone) return lone;
    const size_t at = fk_plan_find(plans, count, for_all);
    if (at == count) return NULL;
    const fk_plan_info *best = plans; /* the first of family wgmma, as that for all sizes is one */
    while (best < plans + at && (!best->k_stages || (backward && best->head_rows < class->q)))
        best++;
    const int64_t tiles = (class->k + best->block_n - 1) / best->block_n; /* of the longest sequence's keys */
    if (backward && problem->packed && 2 * (class->half - 1) < 3 * tiles) return NULL;
    const bool gains = plans[at].legal && best->smem_bytes <= smem &&
                       plans[at].model_us > fmax(times * best->model_us, best->model_us + more_us);
    if (gains && best->head_rows) return best;
    const fk_plan_info *few = lone_backward(problem, class, plans, count, smem);
    return few ? few : gains ? best : NULL;
}
