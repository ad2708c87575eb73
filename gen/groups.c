/* The order of a launch's tiles: heads walk in groups, one group after the other, so that L2 keeps what a group's tiles
 * read and add to. Within a group all heads' first tiles begin before any second one does, so that the longest come
 * first. The runtime makes grids and parameters of it, the model predicts the traffic of HBM from it. */
#include "abi.h"
#include "generate.h"

#include <string.h>

/* Bytes that the tiles of one kv head walk over. Backward: q and dout of its query heads, two floats a row, and dq's
 * sum. */
static int64_t walked_bytes(const fk_problem *p, const fk_shape *shape, int d_pad) {
    const int64_t row = (p->head_dim + p->head_dim_v) * fk_dtype_bytes(p->dtype);
    const int64_t ratio = shape->num_heads_q / shape->num_heads_kv;
    return p->op == FK_BACKWARD ? shape->seqlen_q * (row + 8 + d_pad * 4) * ratio : shape->seqlen_k * row;
}

/* More than one, so that the longest tiles of many heads come first and the shortest last; but
 * - what they walk over shares the L2 cache. An SM sees the far half of it through the near one, so that a third is
 * sure to stay; where tiles have unlike lengths, balance is worth two thirds;
 * - their first tiles fetch from HBM, each 4,096 / block_m bytes a clock where the tensor cores bound, and all later
 * ones wait meanwhile. An SM per 512 rows takes two fifths of what HBM gives (measured on an H200:
 * docs/performance-log.md).
 */
static int64_t reading_heads(const fk_problem *p, const fk_plan_info *plan, int64_t walked, int64_t num_sms,
                             int64_t l2_bytes) {
    const int64_t fitting = l2_bytes * (p->num_masks ? 2 : 1) / 3 / walked;
    const int64_t fetching = num_sms * plan->block_m / 512;
    return fitting < fetching ? fitting : fetching;
}

/* Persistent CTAs of the backward pass add to dq. In order, those of one head start one after another, each a visit
 * behind the last one, and a group has as many heads as keep the CTAs busy that wait meanwhile: the fewer, the longer
 * their walks. In any order, CTAs of one head hinder one another at the same sums; half as many heads do where all walk
 * alike. What does not fit L2 costs little then, as the CTAs of a head are at neighbouring tiles of queries; but for
 * many heads it adds up.
 */
static int64_t adding_heads(const fk_problem *p, const fk_plan_info *plan, const fk_shape *shape, int64_t num_sms) {
    const int64_t ctas = num_sms * plan->ctas_per_sm / fk_plan_cluster(p, plan); /* a cluster's add to other columns */
    const int64_t ratio = shape->num_heads_q / shape->num_heads_kv;
    const int64_t walk = (shape->seqlen_q + plan->block_m - 1) / plan->block_m * ratio;
    const bool ordered = fk_has_adders(p, plan->q_stages), unlike = p->num_masks > 0;
    const int64_t enough = (ordered || unlike ? 8 : 4) * ctas / walk, most = ctas / (ordered ? 4 : unlike ? 8 : 16);
    return enough < most ? enough : most;
}

int64_t fk_group_heads(const fk_problem *p, const fk_plan_info *plan, int d_pad, const fk_shape *shape, int64_t num_sms,
                       int64_t l2_bytes) {
    const bool persistent = strcmp(plan->family, "wgmma") == 0;
    const int64_t walked = walked_bytes(p, shape, d_pad), kv_heads = shape->batch * shape->num_heads_kv;
    int64_t most = l2_bytes / 2 / walked; /* the other half is for own tiles and luck */
    if (persistent && p->op == FK_FORWARD) most = reading_heads(p, plan, walked, num_sms, l2_bytes);
    if (persistent && p->op == FK_BACKWARD) {
        const int64_t adding = adding_heads(p, plan, shape, num_sms);
        if (most < adding) most = adding;
    }
    if (most < 1) most = 1;
    const int64_t groups = (kv_heads + most - 1) / most; /* as equal as can be: all as large as the first, or shorter */
    return (kv_heads + groups - 1) / groups;
}
