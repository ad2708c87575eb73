/* The cost model of the wgmma family's forward pass. One visit of a tile, in clocks of an SM, takes the longest of
 *     tensor   2 block_m block_n (d_pad + dv_pad) / wgmma_flops
 *     softmax  exps / exp_rate + its other instructions / issue_rate: they do not run side by side
 *     smem     K and V read by each warpgroup, Q where it is read there, tiles written
 *     chain    what one of the warpgroups waits for: its products, its softmax, and LATENCY; the others' run meanwhile
 * and besides what no product hides: dropout, masks, the running maximum. Beside a full tensor pipe an instruction
 * takes the clock that it is issued in. All constants are fitted to an H200: tilings of head dims 64, 128 and 256, full
 * and causal, at 512 to 16,384 keys. */
#include "plan.h"

#include <math.h>

/* Instructions (lanes) of one score: multiply-add, ex2, sum, half a conversion, the loop's share; and what dropout adds
 * (docs/dropout.md). */
static const double SOFTMAX_LANES = 3.4, DROPOUT_LANES = 3.6;
/* Of one score in a partial tile: indices, comparison, select, and the running maximum. A diagonal crosses
 * block_m + block_n keys of a CTA, but 64 + block_n of a warpgroup, which alone masks. */
static const double MASK_LANES = 7.0;
/* Clocks between a warpgroup's products and its softmax and back; more where one array of weights serves both. */
static const double LATENCY = 325.0, LATENCY_ONE_ARRAY = 100.0;
/* Share of reading Q from shared memory that the products wait for. */
static const double Q_SHARE = 0.4;
/* Clocks of a tile that no visits hide: claim, first product and first softmax; Q and O pass at EDGE_RATE bytes a
 * clock. A single buffer of Q waits for the output that passes through it, and for the load after it. */
static const double TILE_CLOCKS = 400.0, ONE_BUFFER_CLOCKS = 1200.0, EDGE_RATE = 32.0;
/* CTAs fetch tiles group of heads by group of heads, so that long ones are left to the end. */
static const double LATE = 1.3;
/* Share of the clock that busy tensor cores cost, by the power that they draw. */
static const double POWER_SHARE = 0.26;

/* Shares by which a visit takes longer: of warpgroups that fall into step, where the softmax is as long as the
 * products; of a ring of two where CTAs walk over unlike numbers of tiles; of a deeper one where they walk alike.
 * Measured at head dim 64; at 128 nobody falls into step. */
static const double IN_STEP = 0.17, SHALLOW = 0.10, DEEP = 0.04;

int fk_wgmma_registers(const fk_tile *tile, const fk_smem_layout *layout) {
    const int acc_o = layout->dv_pad / 2, acc_s = tile->block_n / 2, weights = tile->block_n / 4;
    const int q = tile->q_in_regs ? layout->d_pad / 4 : 0;
    const int fixed = 28;                       /* m, l, addresses, loop counters, bounds of the mask, scale */
    return acc_o + acc_s + weights + q + fixed; /* a second array of weights lies over the scores that it is made of */
}

fk_visit_cost fk_wgmma_visit(const fk_problem *p, const fk_device_info *device, const fk_arch *arch,
                             const fk_smem_layout *layout, const fk_plan_info *plan, double partial_share) {
    const int consumers = plan->block_m / 64;
    const double scores = (double)plan->block_m * plan->block_n, columns = layout->d_pad + layout->dv_pad;
    const double stored = (layout->d_pad + 63) / 64 * 64 + (layout->dv_pad + 63) / 64 * 64;
    const double read_bytes = consumers * 2.0 * plan->block_n * columns, own_bytes = 2.0 * plan->block_m * columns;
    const double q_clocks = plan->q_in_regs ? 0 : 2.0 * plan->block_m * layout->d_pad / device->smem_rate;
    const double masked = partial_share * (64.0 + plan->block_n) / (plan->block_m + plan->block_n);
    const double extra = (p->dropout ? DROPOUT_LANES : 0) + MASK_LANES * masked;
    fk_visit_cost cost = {
        .tensor = 2.0 * scores * columns / arch->wgmma_flops,
        .exp = scores / device->exp_rate,
        .issue = scores * (SOFTMAX_LANES + extra) / device->issue_rate,
        .smem = (read_bytes + 2.0 * plan->block_n * stored) / device->smem_rate + q_clocks,
        .turns = 1,
        .start = TILE_CLOCKS,
        .edge = own_bytes / EDGE_RATE,
        .late = LATE,
    };
    const double softmax = cost.exp + scores * SOFTMAX_LANES / device->issue_rate + Q_SHARE * q_clocks;
    const double latency = LATENCY + (plan->overlap == 1 ? LATENCY_ONE_ARRAY : 0);
    const double chain = (cost.tensor + softmax) / consumers + latency;
    cost.serial = fmax(fmax(cost.tensor, softmax), fmax(cost.smem, chain)) + scores * extra / device->issue_rate;
    const bool unlike = partial_share > 0.01;
    if (!plan->turns) cost.serial *= 1 + IN_STEP * fmin(1, fmax(0, 2 * cost.exp / cost.tensor - 1));
    if (consumers == 3) cost.serial *= 1 + (plan->stages > 2 ? (unlike ? 0 : DEEP) : (unlike ? SHALLOW : 0));
    if (plan->q_stages == 1) cost.edge += ONE_BUFFER_CLOCKS + 0.5 * own_bytes / EDGE_RATE;
    return cost;
}

double fk_wgmma_slow(double clocks, double tensor) {
    return clocks / (1 - POWER_SHARE * fmin(1.0, tensor / clocks));
}
