/* What of the data that tiles walk over comes from HBM again: K and V, or Q, dO and dq's sum, of the heads that walk
 * together, where they are more than L2 keeps. Family wgmma, in whose launches CTAs claim tiles group by group
 * (groups.c). With x the bytes of a group over L2's, and the share of the tiles that a CTA visits, there follow
 *     forward    FORWARD_RATE (1 - FORWARD_KEPT / (x share))
 *     backward   BACKWARD_RATE (1 - BACKWARD_KEPT / x) share^2 rounds
 *     patterns   PATTERN_FAR x + PATTERN_RATE (x - PATTERN_KEPT) (visits - 1)
 * passes on the first one; backward, whose groups are smaller, patterns have the second part alone. A round are as many
 * tiles of each head as run at a time: they walk side by side, so that one fetches for all, and drift apart where those
 * behind wait to add. Rows of a pattern are at places of their own, and each visit to a tile finds it or does not. */
#include "plan.h"

#include <math.h>

/* Fitted to what an H200's counters say (docs/benchmarks.md). Its 60 MB are two halves; what SMs on either side read is
 * in both, what they add to in one. */
static const double FORWARD_KEPT = 0.21, FORWARD_RATE = 2.0;
static const double BACKWARD_KEPT = 0.37, BACKWARD_RATE = 2.0;
static const double PATTERN_FAR = 0.6, PATTERN_KEPT = 0.39, PATTERN_RATE = 0.7;

double fk_model_passes_again(const fk_problem *p, const fk_device_info *device, const fk_smem_layout *layout,
                             const fk_shape *shape, const fk_plan_info *plan, const fk_tile_totals *tiles) {
    fk_shape heads = *shape;
    if (p->packed) heads.batch = 1; /* a head's tiles are those of all sequences */
    const double group =
        (double)fk_group_heads(p, plan, layout->d_pad, layout->pattern, &heads, device->num_sms, device->l2_bytes);
    const double one_by_one = layout->walks_q ? (double)shape->num_heads_q / (double)shape->num_heads_kv : 1;
    const double bytes = group * (double)fk_walked_bytes(p, shape, layout->d_pad, true) / one_by_one;
    const double x = bytes / (double)device->l2_bytes, share = tiles->mean_visited / (double)tiles->num_walked;
    const double visits = share * (double)tiles->num_ctas;
    const double at_a_time = (double)device->num_sms / fk_plan_cluster(p, plan) * plan->ctas_per_sm;
    const double rounds = group * (double)tiles->num_ctas / at_a_time;
    double again = FORWARD_RATE * (1 - FORWARD_KEPT / (x * share));
    if (layout->walks_q) again = BACKWARD_RATE * (1 - BACKWARD_KEPT / x) * share * share * rounds;
    if (layout->pattern)
        again = PATTERN_FAR * (layout->walks_q ? 0 : x) + PATTERN_RATE * fmax(0, x - PATTERN_KEPT) * (visits - 1);
    return fmax(0, fmin(again, visits - 1));
}
