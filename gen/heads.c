/* One query of each head as so many queries of their kv head. */
#include "plan.h"
#include "problem.h"

#include <math.h>
#include <string.h>

/* The kernel for queries has no masks to say: the query sees all keys. */
static bool sees_all_keys(const fk_problem *p) {
    return p->num_masks == 0 ||
           (p->num_masks == 1 && strcmp(p->mask[0].name, "causal") == 0 && p->align == FK_BOTTOM_RIGHT);
}

static bool may_turn(const fk_problem *p, const fk_device_info *device, const fk_shape *shape) {
    return p->op == FK_FORWARD && device->sm == 90 && (p->dtype == FK_FP16 || p->dtype == FK_BF16) && !p->kv_e4m3 &&
           !p->packed && !p->dropout && !p->fast && p->num_scores == 0 && p->paged != 1 && sees_all_keys(p) &&
           shape->seqlen_q == 1;
}

/* Measured on an H200 (docs/performance-log.md, 2026-11-30), time over that of splits. Where an SM has one tile, and
 * most have one, 0.83 to 1.01, as there is no second kernel; of several rounds of tiles, which are full in the mean,
 * 0.94 to 1.01 from head dim 128 on, below up to 1.07; of half a round 1.03 and more up to head dim 192. At head dim
 * 128 an SM has two tiles at a time where there are so many, so that 384 tiles are a round and a half: 1.22. Sequences
 * of unlike lengths (lengths from 1 to the longest, from half of it, all alike) take 0.84 to 1.005 where an SM has one
 * tile, from head dim 128 on, and from 192 on 0.84 to 0.99 of several full rounds as well; elsewhere they want splits,
 * as who has the longest would be alone at the end: up to 1.13. Rows of whole sectors alone were timed, and groups that
 * one tile has room for. */
static bool gains(const fk_problem *p, const fk_device_info *device, const fk_shape *shape) {
    static const double first_round = 0.7, all_rounds = 0.9; /* how full they are, at least */
    static const int32_t least_dim = 64, of_rounds = 128, of_unlike_rounds = 192, always = 192;
    static const int64_t rows = 64; /* of the smallest tile */
    const int32_t dim = p->head_dim > p->head_dim_v ? p->head_dim : p->head_dim_v;
    if (fk_is_wide(p)) return true;
    if (dim < (p->seqused_k ? of_rounds : least_dim) || p->head_dim % 16 || p->head_dim_v % 16) return false;
    if (dim > always && !p->seqused_k) return true;
    if (shape->num_heads_q > rows * shape->num_heads_kv) return false;
    const double each = (double)shape->batch * (double)shape->num_heads_kv / device->num_sms;
    if (each <= 1) return each >= first_round;
    if (dim < (p->seqused_k ? of_unlike_rounds : of_rounds)) return false;
    const double rounds = dim > of_rounds ? each : each / 2;
    return rounds >= all_rounds * ceil(rounds);
}

int fk_problem_heads_are_queries(const fk_problem *problem, const fk_device_info *device, const fk_shape *shape,
                                 fk_problem *out) {
    fk_problem p;
    fk_shape filled;
    fk_error err;
    if (!problem || !device || !shape || fk_problem_normalise(problem, &p, &err) ||
        fk_shape_fill(&p, shape, &filled, &err) || !may_turn(&p, device, &filled) || !gains(&p, device, &filled))
        return 0;
    p.split = p.gqa = p.num_masks = 0;
    if (out) *out = p;
    return 1;
}
