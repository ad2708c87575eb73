/* The cost model of the wgmma family's backward pass. One visit, of a tile of block_m queries by a CTA of block_n keys,
 * is five products, block_m block_n exponentials and the instructions around them. Shared memory serves what the
 * products read (A and B of S and dP; B of dV and dK, whose A is in registers unless the warpgroups share keys; A and B
 * of dQ), takes dS and the tiles that TMA brings, and passes dQ on where it is staged. L2 serves the tiles and adds to
 * dQ's sum. Of a cluster's tile a CTA has its share of the keys, loads its share of Q and dO for all, and gives dQ its
 * share of the columns, for which the CTAs pass dS to one another. Where CTAs have halves of all columns, sums of
 * scores, P and dS go from one to the other. docs/kernels.md has the floors of the tiles in use.
 */
#include "plan.h"

#include <math.h>

/* Instructions (lanes) of one pair: a multiply-add, ex2, a difference, a product, two halves of a conversion, loads;
 * and what dropout and masks add. */
static const double PAIR_LANES = 5.5, DROPOUT_LANES = 5.5, MASK_LANES = 3.0;
static const double L2_RATE = 28.0; /* bytes a clock: fits what tiles of 64 x 64 take at head dim 256 */
/* Clocks of a visit that one warpgroup waits for and the other does not hide: barriers, and a product's way there and
 * back; and of a CTA besides its visits. */
static const double LATENCY = 600.0, CTA_CLOCKS = 3000.0, EDGE_RATE = 18.0;
/* What a visit takes where no barrier joins the warpgroups, and where other warps add to dQ: 1.4 to 2.2 and 5 % less,
 * measured at head dim 64, the latter at 128 as well. */
static const double APART = 0.98, ADDERS = 0.95;
/* Turns with two buffers of dS, measured at head dim 64 with V in registers: less for each visit, and more clocks for
 * each tile of keys, and for each head of a group (1,024 to 16,384 tokens, four heads a kv head: within 0.025). Less is
 * gained where walks are of unlike length and no pattern says so; with dropout or score terms; and nothing where walks
 * of unlike length add in order, where V is read anew for each part of the scores (but where that is for terms such as
 * soft caps, whose instructions turns hide), and where sequences or documents are packed, which are short as a rule. */
static const double TURNS = 0.90, TURNS_SCANS = 0.905, TURNS_UNLIKE = 0.93, TURNS_MORE = 0.96, TURNS_GROUP = 0.935,
                    TURNS_VAIN = 1.03, TURNS_START = 1700.0, TURNS_HEAD = 950.0;
/* And where adds go to L2 from registers, although there is room for dQ: 3 to 6 % more, measured. */
static const double DIRECT = 1.04;
/* Clocks of a visit in which neither products nor adds run, where CTAs wait for each other's sums, and bytes of dQ that
 * are added in a clock beside all else: what remained of a visit without the adds, and with them (head dims 320 and
 * 512). */
static const double HALVED_CHAIN = 2600.0, HALVED_ADD_RATE = 34.0;
/* Documents begin and end anywhere in a tile: tiles of 64 queries visit less of what short ones show, 0.82 of the time
 * at 32 tokens, 0.99 at 1,024. */
static const double DOCUMENTS = 0.82;
/* A third stage of Q and dO beside tiles of 64 queries, which are walked over in half the time. */
static const double THIRD_STAGE = 0.975;
/* Clocks of a tile of keys where a CTA has all of a head's; more with rows that fill no panels. Of the time that HBM
 * takes some is left over (model.c): 0.88 to 1.10 of what was measured at 64 to 512 tokens. */
static const double HEADS_START = 2000.0, HEADS_AHEAD = 300.0, HEADS_UNEVEN = 10000.0, HEADS_UNEVEN_PACKED = 7000.0;
/* Clocks that a pair takes more where threads read an array although tiles of it could be copied, and add its gradient
 * although tiles could be added: 0.3 at head dim 64, 0.8 at 128. */
static const double UNSTAGED_PAIR = 0.3;

fk_visit_cost fk_wgmma_backward_visit(const fk_problem *p, const fk_device_info *device, const fk_arch *arch,
                                      const fk_smem_layout *layout, const fk_plan_info *plan, double partial_share) {
    const fk_tile tile = fk_plan_tile(p, plan);
    const bool halved = fk_tile_halved(p, &tile);
    const int cluster = halved ? 1 : fk_plan_cluster(p, plan); /* that shares a tile of keys */
    const double m = plan->block_m, n = (double)plan->block_n / cluster, d = layout->d_depth, dv = layout->dv_depth;
    const double pairs = m * n;
    const int groups = plan->warps / 4 - 1, shared = layout->col_warps;
    /* Of products of 64 rows: their A, 128 bytes a column of the depth that no registers hold, and their B. */
    const double parts = shared > 1 ? 1 : m / 64; /* that dP comes in */
    const double read = d - 16 * layout->held_k + parts * (dv - 16 * layout->held_v);
    const double scores = groups * 2.0 * (64 * read + m / shared * (d + dv));
    const double gradients = groups * 2.0 * m * (d + dv) / shared + (shared > 1 ? groups * 2.0 * 2 * 64 * m : 0);
    const double dq_columns = m * d / (64.0 * groups * cluster);
    const double dq = groups * 2.0 * n * cluster * (64 + dq_columns);
    const double tiles = 2.0 * m * (d + dv), added = 4.0 * m * d / cluster;
    const double staged =
        plan->q_stages || shared == 1 ? 2 * added : 0; /* what goes to L2 from registers waits as long */
    const double passed = cluster > 1 ? 4.0 * pairs : 0;
    const double written = (shared > 1 ? 4.0 : 2.0) * pairs + tiles + staged + passed;
    const double extra = pairs * ((p->dropout ? DROPOUT_LANES : 0) + MASK_LANES * partial_share) / device->issue_rate;
    fk_visit_cost cost = {
        .tensor = 2.0 * pairs * (3 * d + 2 * dv) / arch->wgmma_flops,
        .exp = pairs / device->exp_rate,
        .issue = pairs * PAIR_LANES / device->issue_rate + extra,
        .smem = (scores + gradients + dq + written) / device->smem_rate,
        .l2 = (tiles / cluster + added) / L2_RATE,
        .turns = 1,
        .start = CTA_CLOCKS,
        .edge = 8.0 * n * (d + dv) / EDGE_RATE,
    };
    const double chain = (cost.tensor + cost.exp + cost.issue) / groups + LATENCY;
    cost.serial = fmax(fmax(fmax(cost.tensor, cost.smem), cost.l2), chain) + LATENCY / 2 + extra;
    if (halved) {
        cost.serial = cost.tensor + added / HALVED_ADD_RATE + HALVED_CHAIN + extra;
        return cost;
    }
    cost.serial *= plan->q_stages == 2 ? ADDERS : plan->k_stages == 3 ? APART : 1.0;
    if (plan->turns && plan->k_stages == 2) {
        const bool unlike = partial_share > 0 || layout->scans;
        const double spares = layout->scans ? TURNS_SCANS : unlike ? TURNS_UNLIKE : TURNS;
        const bool brief = p->packed || layout->mask_rows;
        const bool terms = p->num_scores > 0, reads_v = !layout->held_v && !terms;
        const bool vain = brief || (unlike && p->deterministic) || parts == 1 || reads_v;
        const bool more = p->dropout || terms;
        cost.serial *= vain ? TURNS_VAIN : more ? TURNS_MORE : p->gqa ? TURNS_GROUP : spares;
        cost.start += TURNS_START, cost.head = p->gqa ? TURNS_HEAD : 0;
    }
    if (layout->mask_rows && parts == 1 && shared == 1) cost.serial *= DOCUMENTS;
    if (parts == 1 && shared == 1 && plan->stages == 3) cost.serial *= THIRD_STAGE;
    if (plan->head_rows) {
        const bool uneven = p->head_dim > 64 && p->head_dim % 64;
        cost.start = !uneven ? HEADS_START : p->packed ? HEADS_UNEVEN_PACKED : HEADS_UNEVEN;
        if (layout->kv_buffers > 1) cost.start -= HEADS_AHEAD;
        cost.edge = 0;
    } else if (!plan->q_stages && shared == 1) {
        cost.serial *= DIRECT;
    }
    if (layout->unstaged) cost.serial += pairs * UNSTAGED_PAIR;
    return cost;
}
