/* The order of a launch's tiles: heads walk in groups, one group after the other, so that L2 keeps what a group's tiles
 * read and add to. Within a group all heads' first tiles begin before any second one does, so that the longest come
 * first. The runtime makes grids and parameters of it, and the model predicts the traffic of HBM from it. */
#include "abi.h"
#include "plan.h"

#include <string.h>

/* Sides of L2: so many rows for each column of a head, and in all. */
#define SIDED_ROWS 6
#define MOST_SIDED_ROWS 960

/* Backward: q and dout of its query heads, two floats a row, and dq's sum. */
int64_t fk_walked_bytes(const fk_problem *p, const fk_shape *shape, int d_pad, bool wgmma) {
    const int64_t row = (p->head_dim + p->head_dim_v) * fk_walked_element_bytes(p, wgmma);
    const int64_t ratio = shape->num_heads_q / shape->num_heads_kv;
    int64_t bytes;
    if (p->op == FK_FORWARD) return shape->seqlen_k * row;
    return __builtin_mul_overflow(shape->seqlen_q * (row + 8 + d_pad * 4), ratio, &bytes) ? INT64_MAX : bytes;
}

/* More than one, so that the longest tiles of many heads come first and the shortest last; but
 * - what they walk over shares the L2 cache, of which an SM sees the far half through the near one. Of a quarter little
 * is fetched twice; where tiles have unlike lengths, balance is worth two thirds, half where a pattern says so, each of
 * whose visits may find nothing in L2, and a third in packed sequences (measured on an H200, as what follows:
 * docs/performance-log.md);
 * - their first tiles fetch from HBM, each 4,096 / block_m bytes a clock where the tensor cores bound, and all later
 * ones wait meanwhile. An SM per 512 rows takes two fifths of what HBM gives; with one buffer of Q, which each tile
 * waits for, half as many are better where tiles are alike (0.955 and 0.97 of the time of 384 and 512 tokens at head
 * dim 256 on an H100). */
static int64_t reading_heads(const fk_problem *p, const fk_plan_info *plan, bool pattern, int64_t walked,
                             int64_t num_sms, int64_t l2_bytes) {
    const int64_t twelfths = pattern ? 6 : p->num_masks ? 8 : p->packed ? 4 : 3;
    const bool waits = plan->q_stages == 1 && !p->num_masks && !p->packed && p->dtype != FK_E4M3;
    const int64_t rows = waits ? 1024 : 512; /* for each SM that fetches at a time */
    const int64_t fitting = l2_bytes * twelfths / 12 / walked, fetching = num_sms * plan->block_m / rows;
    return fitting < fetching ? fitting : fetching;
}

/* Persistent CTAs of the backward pass add to dq. As many heads as half of L2 holds, the rest being for own tiles and
 * luck; or more,
 * - in order, where CTAs of one head start one after another, each a visit behind the last one: as many as keep the
 * CTAs busy that wait meanwhile, the fewer, the longer their walks;
 * - in any order, where CTAs of one head hinder one another at the same sums: half as many where all walk alike.
 * Where other warps add, as in order. Where all walk alike as well, few CTAs ever wait: 256 queries for each of a
 * head's are enough, or what a third of L2 holds, which is not fetched twice; that is as fast where tiles are a
 * pattern's. */
static int64_t adding_heads(const fk_problem *p, const fk_plan_info *plan, bool pattern, const fk_shape *shape,
                            int64_t walked, int64_t num_sms, int64_t l2_bytes) {
    const bool buffered = plan->q_stages == 2, unlike = p->num_masks > 0;
    const bool follow = buffered && !unlike && !p->packed;
    if (buffered && pattern && !p->deterministic) return l2_bytes / 3 / walked;
    const bool ordered = fk_has_adders(p, plan->q_stages, plan->head_rows);
    const int64_t ctas = num_sms * plan->ctas_per_sm / fk_plan_cluster(p, plan); /* a cluster's add to other columns */
    const int64_t ratio = shape->num_heads_q / shape->num_heads_kv;
    const int64_t walk = (shape->seqlen_q + plan->block_m - 1) / plan->block_m * ratio;
    const int64_t enough = follow ? 256 * ctas / (shape->seqlen_q * ratio) : (ordered || unlike ? 8 : 4) * ctas / walk;
    const int64_t most = ctas / (follow ? 8 : ordered ? 4 : unlike ? 8 : 16);
    const int64_t adding = enough < most ? enough : most, fitting = l2_bytes / (follow ? 3 : 2) / walked;
    return fitting > adding ? fitting : adding;
}

/* Family wgmma, forward. SMs of both sides of L2 read a head's keys, all of which come over the link between the sides
 * once. That is what bounds if few rows read them, more than one tile's, but not so many that products take longer
 * (measured on an H100: docs/performance-log.md). */
bool fk_has_sides(const fk_problem *p, const fk_plan_info *plan, const fk_shape *shape) {
    const fk_tile tile = fk_plan_tile(p, plan);
    const int64_t rows = shape->seqlen_q, few = SIDED_ROWS * p->head_dim;
    return fk_tile_may_have_sides(p, &tile) && shape->batch * shape->num_heads_kv > 1 && rows > plan->block_m &&
           rows <= (few < MOST_SIDED_ROWS ? few : MOST_SIDED_ROWS) * (p->num_masks ? 2 : 1);
}

int64_t fk_group_heads(const fk_problem *p, const fk_plan_info *plan, int d_pad, bool pattern, const fk_shape *shape,
                       int64_t num_sms, int64_t l2_bytes) {
    const bool persistent = strcmp(plan->family, "wgmma") == 0;
    if (plan->head_rows) return 1; /* whose tiles are one CTA's */
    const int64_t walked = fk_walked_bytes(p, shape, d_pad, persistent), kv_heads = shape->batch * shape->num_heads_kv;
    const int64_t fitting = !persistent           ? l2_bytes / 2 / walked
                            : p->op == FK_FORWARD ? reading_heads(p, plan, pattern, walked, num_sms, l2_bytes)
                                                  : adding_heads(p, plan, pattern, shape, walked, num_sms, l2_bytes);
    const int64_t most = fitting < 1 ? 1 : fitting, groups = (kv_heads + most - 1) / most;
    const int64_t group = (kv_heads + groups - 1) / groups; /* as equal as can be: as large as the first, or short */
    return fk_has_sides(p, plan, shape) ? group + group % 2 : group;
}
