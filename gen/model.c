/* The cost model: a plan's time is that of its busiest unit, plus what the resident warps cannot hide.
 *
 * For one visit of a key tile by a query tile, in clocks of an SM:
 *     tensor   2 block_m block_n (d_pad + dv_pad) / mma_flops
 *     exp      block_m block_n / exp_rate
 *     issue    lanes of softmax, mask code, mma, ldmatrix and copies / issue_rate
 *     smem     operand bytes read (every warp reads all of K and V) and tile bytes written / smem_rate
 * A warp alone does its GEMMs and then its softmax:
 *     serial = max(tensor, smem, issue of the GEMMs) + max(exp, issue of the softmax) + barriers
 * With w warps on each scheduler, one warp's softmax runs under the others' GEMMs:
 *     visit  = floor + (serial - floor) / w,      floor = max(tensor, exp, issue, smem)
 * The problem takes the visits of all CTAs over all SMs, the part of the last wave in which SMs are idle, at least the
 * longest CTA, and at least its HBM bytes / bandwidth; forward in family wgmma both count where they are alike. Visits
 * of that family, whose tiles are fetched, are of model_wgmma.c. */
#include "plan.h"

#include <math.h>
#include <stdio.h>

/* Instructions (lanes) of one score: multiply-add, max, ex2, sum, half a conversion, and the row's share; and what
 * dropout adds (docs/dropout.md). */
static const double SOFTMAX_LANES = 5.0, DROPOUT_LANES = 3.6;
/* Of one score in a partial tile: indices, comparison, select. */
static const double MASK_LANES = 4.0;
/* Instructions around one 16-byte copy: address and copy; without asynchronous copies also load, store and wait; of
 * e4m3 conversions besides. */
static const double COPY_LANES_ASYNC = 2.0, COPY_LANES_STAGED = 4.0, COPY_LANES_WIDENED = 8.0;
/* Clocks of a CTA that no other work of its own hides: start, Q, the first tile's latency, the epilogue. */
static const double CTA_CLOCKS = 2500.0;
/* Bytes of Q and O that an SM moves in a clock while that start and epilogue last. */
static const double EDGE_RATE = 32.0;
/* Share by which a visit takes longer where one CTA has the SM to itself, its warps all waiting at each barrier: fitted
 * to d256 on the H200, 128 x 64 with one CTA against 64 x 64 with two. */
static const double ALONE = 0.15;
/* The same of fp32 whose tiles are parts: fitted to head dims 32 to 128 on the H200. */
static const double ALONE_PARTED = 0.06;
/* Likewise of 64 keys in fp32 above head dim 96, beside whose accumulators no register is left to work ahead: fitted to
 * d128 on an H100, 64 x 64 against 64 x 32; and where 64 registers and more of K and V wait to become parts: d128 on
 * the H200, 64 x 32 by 4 warps against 128 x 32 by 8. */
static const double CROWDED = 0.17;
/* Share by which a pattern's tile takes longer that is seen in part, if each of several warpgroups is asked about, or
 * if the predicate is long: a quarter to a half, by the smaller blocks of `bigbird` and `longformer` at head dim 64,
 * on Hopper. */
static const double PATTERN_PART = 0.35;
/* Clocks of a barrier with the wait for copies before it: one for a visit, two with a single stage. */
static const double BARRIER_CLOCKS = 200.0;
/* What the mma family takes of these times where wgmma is at hand, measured: 1.2 at head_dim 64, 1.35 at 128, 1.07 at
 * 256, more for few keys; backward 1.1 to 1.3, twice where a CTA visits few tiles, and clusters are faster still. It
 * ranks nothing within the family. */
static const double BESIDE_WGMMA = 1.25, BACKWARD_BESIDE_WGMMA = 1.65;
/* Share of L2 that K and V can hold against Q, O and what is just passing through. */
static const double L2_SHARE = 0.5;

int fk_model_copied_rows(int block_n, int chunks, int threads) {
    int lanes = 2; /* the least power of two that covers a row's chunks */
    while (lanes < chunks)
        lanes *= 2;
    const int rows_at_a_time = threads > lanes ? threads / lanes : 1;
    return (block_n + rows_at_a_time - 1) / rows_at_a_time;
}

/* Where elements become operands of 16 bits on their way, beside those that wait in registers. */
enum { WIDENED_REGISTERS = 4 };

/* Of a thread, where tiles of K and V wait to become parts. */
static int waiting_registers(int block_n, const fk_smem_layout *layout, int threads) {
    return 4 * (fk_model_copied_rows(block_n, layout->d_pad / 4, threads) +
                fk_model_copied_rows(block_n, layout->dv_pad / 4, threads));
}

int fk_model_part_registers(const fk_smem_layout *layout, int rows) {
    const int steps = layout->d_pad <= 64 ? 2 : 1; /* of 16 columns at a time */
    return 3 * steps * (rows / 4 + 4);
}

/* What the kernel declares, and what ptxas (CUDA 13.0) keeps besides: fitted between tilings that just fit and tilings
 * that just spill, over all head dims, full and causal, on sm_75, sm_80 and sm_90. */
int fk_model_registers(const fk_problem *p, const fk_tile *tile, const fk_smem_layout *layout, const fk_arch *arch) {
    if (tile->wgmma) return tile->walks_q ? layout->registers : fk_wgmma_registers(p, tile, layout);
    if (p->op == FK_BACKWARD)
        return tile->walks_q ? fk_backward_registers(p, tile, layout, arch) : fk_dq_registers(p, tile, layout, arch);
    const int rows = tile->block_m / tile->warps, threads = tile->warps * 32;
    const int widest = layout->d_pad > layout->dv_pad ? layout->d_pad : layout->dv_pad;
    const bool whole_panels = layout->d_pad % 64 == 0 && layout->dv_pad % 64 == 0; /* addresses differ by constants */
    const int acc_o = rows * layout->dv_pad / 32;                                  /* fp32 accumulator of O */
    const int acc_s = rows * tile->block_n / 32;                          /* fp32 scores, which become P in place */
    const int q = tile->q_in_regs ? rows * layout->d_pad / 64 : rows / 4; /* Q fragments: all, or one step's */
    const int operand = 4;                                                /* one ldmatrix of K or V */
    const int stats = rows / 8 * 2;                                       /* m and l of the thread's rows */
    const int fixed = 32; /* addresses, loop counters, bounds of the mask, scale */
    const int declared = acc_o + acc_s + q + operand + stats + fixed;
    if (!arch->async_copy) { /* staged tiles with their addresses; operands made ahead of their use */
        const int all =
            declared + 7 * fk_model_copied_rows(tile->block_n, widest / 8, threads) + (whole_panels ? 46 : 54);
        return rows * tile->block_n == 16 * 16 && all > 255 ? 255 : all; /* the smallest there is: a few may spill */
    }
    int ahead = 6;
    if (fk_tile_widens(p, tile))
        ahead += WIDENED_REGISTERS + 4 * fk_model_copied_rows(tile->block_n, widest / 8, threads);
    if (fk_tile_parted(p, tile)) /* K and V on their way; what scores lose in a float */
        ahead += waiting_registers(tile->block_n, layout, threads) + acc_s + fk_model_part_registers(layout, rows);
    if (acc_s >= 128) ahead += 12;
    if (tile->q_in_regs && widest > 64 && !whole_panels) ahead += 24;
    if (tile->ctas * threads > 256) ahead += 8; /* ptxas packs fewer than 255 less tightly */
    return declared + ahead;
}

fk_mma_kind fk_model_mma(const fk_problem *p, const fk_arch *arch, bool parted) {
    if (p->dtype == FK_FP32) return (fk_mma_kind){6, 16, parted ? 3 * 2 : 4};
    return (fk_mma_kind){1, arch->mma_k, 2};
}

/* Of fp32, to split an element, and to add up an atom's sums after a step. */
static const double SPLIT_LANES = 5.5, SUM_LANES = 8.0;

double fk_model_gemm_lanes(const fk_mma_kind *mma, double flops, double bytes, double column_bytes) {
    const double steps = flops / 2 / (16.0 * 8.0 * mma->depth);
    const double lanes = (steps * mma->passes + bytes / 512.0) * 32.0; /* ldmatrix reads 512 bytes */
    if (mma->passes == 1) return lanes;
    return lanes + (column_bytes / 128.0 - column_bytes / 512.0) * 32.0 + SPLIT_LANES * bytes / 4.0 +
           SUM_LANES * 32.0 * steps;
}

double fk_model_parted_lanes(const fk_mma_kind *mma, double flops, double bytes, double elements) {
    const double steps = flops / 2 / (16.0 * 8.0 * mma->depth);
    return (steps * (mma->passes + SUM_LANES) + bytes / 512.0) * 32.0 + SPLIT_LANES * elements;
}

static fk_visit_cost forward_visit(const fk_problem *p, const fk_device_info *device, const fk_arch *arch,
                                   const fk_smem_layout *layout, const fk_plan_info *plan, const fk_score_work *score,
                                   double partial_share) {
    const double scores = (double)plan->block_m * plan->block_n;
    const double columns = layout->d_pad + layout->dv_pad;
    const fk_tile tile = fk_plan_tile(p, plan);
    const bool parted = fk_tile_parted(p, &tile);
    const fk_mma_kind mma = fk_model_mma(p, arch, parted);
    const double q_bytes = plan->q_in_regs ? 0 : mma.bytes * plan->block_m * layout->d_pad;
    const double read_bytes = plan->warps * mma.bytes * plan->block_n * columns + q_bytes;
    const double tile_bytes = mma.bytes * plan->block_n * columns, flops = 2.0 * scores * columns;
    const double v_bytes = plan->warps * mma.bytes * plan->block_n * layout->dv_pad;
    const double gemm_lanes = parted ? fk_model_parted_lanes(&mma, flops, read_bytes, plan->block_n * columns + scores)
                                     : fk_model_gemm_lanes(&mma, flops, read_bytes, v_bytes);
    const double copied = fk_kv_dtype(p) == FK_E4M3     ? COPY_LANES_WIDENED
                          : arch->async_copy && !parted ? COPY_LANES_ASYNC
                                                        : COPY_LANES_STAGED;
    const double copy_lanes = tile_bytes / 16.0 * copied;
    const double softmax_issue =
        scores * (SOFTMAX_LANES + score->lanes + (p->dropout ? DROPOUT_LANES : 0) + MASK_LANES * partial_share) /
        device->issue_rate;
    const double gemm_issue = (gemm_lanes + copy_lanes) / device->issue_rate;
    fk_visit_cost cost = {
        .tensor = flops * mma.passes / device->mma_flops,
        .exp = scores / device->exp_rate,
        .issue = softmax_issue + gemm_issue,
        .smem = (read_bytes + tile_bytes) / device->smem_rate,
        .l2 = scores * score->l2,
    };
    if (p->dtype == FK_FP32) cost.chained = cost.tensor + gemm_issue;
    cost.serial = fk_model_waits(score, plan->block_n / 8.0) +
                  fmax(fmax(fmax(cost.tensor, cost.smem), gemm_issue), cost.chained) + fmax(cost.exp, softmax_issue) +
                  BARRIER_CLOCKS * (plan->stages == 1 ? 2 : 1);
    const int waiting = waiting_registers(plan->block_n, layout, plan->warps * 32);
    const bool crowded = parted ? waiting >= 64 : p->dtype == FK_FP32 && layout->d_pad > 96 && plan->block_n > 32;
    cost.alone = (plan->ctas_per_sm > 1 ? 0 : parted ? ALONE_PARTED : ALONE) + (crowded ? CROWDED : 0);
    cost.edge = fmin(mma.bytes, 4) * plan->block_m * columns / EDGE_RATE;
    return cost;
}

static double visit_clocks(const fk_visit_cost *cost, double turns) {
    const double lowest =
        fmax(fmax(fmax(cost->tensor, cost->exp), fmax(cost->issue, cost->smem)), fmax(cost->l2, cost->chained));
    return lowest + fmax(0.0, cost->serial - lowest) / fmax(1.0, turns);
}

/* Clocks from the first CTA's start to the last one's end. CTAs start longest first, so what fills the last wave are
 * the shortest. `sms`: that CTAs have to themselves; those of a cluster count as one CTA of one SM. */
static double makespan(double sms, const fk_plan_info *plan, const fk_visit_cost *cost, const fk_tile_totals *tiles,
                       double num_ctas) {
    const double resident = fmin(plan->ctas_per_sm, ceil(num_ctas / sms));
    const double clocks = (1 + cost->alone) * visit_clocks(cost, resident * cost->turns);
    const double cta = (cost->start + cost->edge) / resident; /* the other residents work meanwhile */
    const double waves = num_ctas / (sms * resident);
    const double busy = num_ctas / sms * (tiles->mean_visited * clocks + cta);
    const double idle = (ceil(waves) - waves) * resident * (tiles->min_visited * clocks + cta);
    const double longest = tiles->max_visited * fmax(cost->lone, visit_clocks(cost, cost->turns)) + cost->start;
    return fmax(busy + idle, longest);
}

/* CTAs of a tile; of a cluster that halves it, the cluster. */
static int slices_of(const fk_problem *p, const fk_smem_layout *layout) {
    return layout->wgmma ? 1 : fk_slices(p);
}

/* Q, O and lse pass once. K and V pass once if the heads that run at a time fit L2, else once for each wave over them
 * (family wgmma: model_l2.c), and never more than once for each visit. */
static double forward_hbm_bytes(const fk_problem *p, const fk_device_info *device, const fk_smem_layout *layout,
                                const fk_shape *shape, const fk_plan_info *plan, const fk_tile_totals *tiles) {
    const double heads = (double)shape->batch * (double)shape->num_heads_q;
    const double kv_heads = (double)shape->batch * (double)shape->num_heads_kv;
    const double columns = p->head_dim + (p->latent ? 0 : p->head_dim_v); /* of K, which may have V's */
    const double width = fk_walked_element_bytes(p, layout->wgmma) * columns;
    const double q_bytes = fk_dtype_bytes(p->dtype) * p->head_dim;
    const double o_bytes = fk_dtype_bytes(fk_output_dtype(p->dtype)) * p->head_dim_v;
    const double once = heads * (double)shape->seqlen_q * (q_bytes + o_bytes + 4.0);
    const double kv_head = (double)shape->seqlen_k * width;
    const double slots = (double)device->num_sms * plan->ctas_per_sm;
    const double ctas = heads * (double)tiles->num_ctas * slices_of(p, layout);
    const double heads_at_a_time = fmin(kv_heads, ceil(slots / (ctas / kv_heads)));
    const double visited = heads * (double)tiles->num_ctas * tiles->mean_visited * plan->block_n * width;
    const double waves = ceil(ctas / slots);
    double kv = kv_heads * kv_head;
    if (layout->wgmma)
        kv *= 1 + fk_model_passes_again(p, device, layout, shape, plan, tiles);
    else if (heads_at_a_time * kv_head > L2_SHARE * (double)device->l2_bytes)
        kv = fmax(kv, waves * heads_at_a_time * kv_head);
    return once + fmin(kv, visited);
}

/* us from the start of the kernel that widens keys to that of the one that takes them, of 1,024 keys on an H100. */
static const double WIDEN_START = 1.8;

/* Of the time that HBM takes, what a CTA that has all keys of a head does not hide, as its rows are short; and clocks
 * that it takes for the statistics of its first head, and for each head where head dims are small. */
static const double HEADS_HBM = 0.8, HEADS_FIRST = 5000.0, HEADS_NARROW = 3600.0;

/* The share of its rate at which HBM was seen, and how sharp the bend is between what computing bounds and what HBM
 * does: where they are alike, both count. Fitted to rows of 32 to 512 tokens on an H100. */
static const double HBM_SHARE = 0.9, HBM_BEND = 6.0;

static double beside_hbm(double clocks_us, double hbm_us) {
    const double longer = fmax(clocks_us, hbm_us / HBM_SHARE), shorter = fmin(clocks_us, hbm_us / HBM_SHARE);
    return longer * pow(1 + pow(shorter / longer, HBM_BEND), 1 / HBM_BEND);
}

static void name_bound(fk_plan_info *plan) {
    static const char *const names[] = {"tensor", "exp", "issue", "smem", "hbm", "l2"};
    const double floors[] = {plan->tensor_us, plan->exp_us, plan->issue_us, plan->smem_us, plan->hbm_us, plan->l2_us};
    int worst = 0;
    for (int i = 1; i < 6; ++i) {
        if (floors[i] > floors[worst]) worst = i;
    }
    snprintf(plan->bound, sizeof plan->bound, "%s", names[worst]);
}

void fk_model_times(const fk_problem *p, const fk_device_info *device, const fk_arch *arch,
                    const fk_smem_layout *layout, const fk_shape *shape, const fk_tile_totals *tiles,
                    const fk_score_work *score, fk_plan_info *plan) {
    const bool walks_q = layout->walks_q, forward = p->op == FK_FORWARD;
    const double visits = tiles->partial + tiles->full, partial = visits > 0 ? tiles->partial / visits : 0;
    fk_visit_cost cost = walks_q && layout->wgmma ? fk_wgmma_backward_visit(p, device, arch, layout, plan, partial)
                         : walks_q                ? fk_backward_visit(p, device, arch, layout, plan, partial)
                         : layout->wgmma
                             ? fk_wgmma_visit(p, device, arch, layout, plan, score, partial, tiles->mean_visited)
                         : forward ? forward_visit(p, device, arch, layout, plan, score, partial)
                                   : fk_dq_visit(p, device, arch, layout, plan, partial);
    const fk_tile tile = fk_plan_tile(p, plan);
    if (forward && layout->pattern && (layout->long_walk || fk_tile_consumers(&tile) > 1))
        cost.serial *= 1 + PATTERN_PART * partial, cost.lone *= 1 + PATTERN_PART * partial;
    if (!layout->wgmma) cost.turns = plan->warps / 4.0, cost.start = CTA_CLOCKS;
    fk_tile_totals walks = *tiles;
    /* Packed sequences are shorter than those that are planned for: rows end more often, and anywhere in a tile. It was
     * measured with wgmma alone. */
    if (forward && p->packed && !p->split && arch->wgmma_flops && !fk_lengths_spread(p, shape)) {
        const double ends = fmax(1, (double)shape->seqlen_k / FK_SHORT_SEQUENCE);
        const double more =
            (1 + plan->block_m / (2 * FK_SHORT_SEQUENCE)) * (1 + plan->block_n / (2 * FK_SHORT_SEQUENCE));
        walks.min_visited *= more, walks.mean_visited *= more, walks.max_visited *= more;
        cost.start *= ends, cost.edge *= ends;
    }
    fk_split_model split = {.share = 1};
    if (p->split) fk_model_split(p, device, shape, plan, &walks, &split);
    const double heads = (double)shape->batch * (double)shape->num_heads_q * slices_of(p, layout);
    const double sms = (double)device->num_sms / fk_plan_cluster(p, plan);
    const double us_per_clock = 1e-3 / device->clock_ghz, us_per_byte = 1e-3 / device->hbm_gbps;
    const double all = visits * split.share * heads / sms * us_per_clock; /* visits of one SM, in us per clock each */
    plan->tensor_us = all * cost.tensor;
    plan->exp_us = all * cost.exp;
    plan->issue_us = all * cost.issue;
    plan->smem_us = all * cost.smem;
    plan->l2_us = all * cost.l2;
    double bytes = 0, around_bytes = 0, widen_us = 0;
    if (walks_q) { /* a CTA walks once for each query head of its group */
        const double group = (double)shape->num_heads_q / (double)shape->num_heads_kv;
        walks.min_visited *= group, walks.mean_visited *= group, walks.max_visited *= group;
        cost.start += group * cost.head;
        fk_backward_hbm_bytes(p, device, layout, shape, plan, tiles, &bytes, &around_bytes);
    } else {
        bytes = forward ? forward_hbm_bytes(p, device, layout, shape, plan, tiles)
                        : fk_dq_hbm_bytes(p, device, shape, plan, tiles);
    }
    around_bytes += split.combine_bytes;
    if (p->dtype == FK_E4M3 && layout->wgmma) /* the values are transposed first */
        around_bytes += 2.0 * (double)(shape->batch * shape->num_heads_kv * shape->seqlen_k) * layout->dv_pad;
    if (p->kv_e4m3 && layout->wgmma) { /* keys and values are read, and written as 16 bits */
        const double visited = (double)tiles->num_ctas * tiles->mean_visited * plan->block_n;
        const double rows = (double)(shape->batch * shape->num_heads_kv) * fmin((double)shape->seqlen_k, visited);
        widen_us = WIDEN_START, around_bytes += 3 * rows * (p->head_dim + p->head_dim_v);
    }
    const double owners = walks_q ? (double)shape->batch * (double)shape->num_heads_kv * slices_of(p, layout) : heads;
    plan->hbm_bytes = bytes + around_bytes;
    plan->hbm_us = plan->hbm_bytes * us_per_byte;
    if (plan->head_rows) { /* a CTA goes through all tiles of keys */
        const double keys = (double)walks.num_ctas;
        walks.mean_visited *= keys, walks.min_visited = walks.max_visited = walks.mean_visited;
        cost.start *= keys, cost.edge *= keys;
        if (p->head_dim <= 40) cost.start += HEADS_NARROW;
        walks.num_ctas = 1;
    }
    const double num_ctas = p->split ? split.num_ctas : owners * (double)walks.num_ctas;
    double clocks = makespan(sms, plan, &cost, &walks, num_ctas);
    if (layout->wgmma) clocks = fk_wgmma_slow(clocks, visits * heads / sms * cost.tensor);
    const bool served = p->dtype != FK_FP32 && !p->split; /* by family wgmma */
    const bool beside = !layout->wgmma && (forward || walks_q) && served && arch->wgmma_flops;
    const double clocks_us = clocks * us_per_clock, hbm_us = bytes * us_per_byte;
    const double times = !beside ? 1 : forward ? BESIDE_WGMMA : BACKWARD_BESIDE_WGMMA;
    const double both = layout->wgmma && forward ? beside_hbm(clocks_us, hbm_us) : fmax(clocks_us, hbm_us);
    plan->model_us = both * times + around_bytes * us_per_byte + widen_us;
    if (plan->head_rows) plan->model_us = clocks_us + HEADS_HBM * hbm_us + HEADS_FIRST * us_per_clock;
    if (p->split) plan->model_us = fk_model_overlap(clocks_us, &split);
    name_bound(plan);
}

bool fk_lengths_spread(const fk_problem *p, const fk_shape *shape) {
    static const int64_t longest = 512;
    return p->packed && p->op == FK_FORWARD && !p->split && shape->seqlen_q <= longest && shape->seqlen_k <= longest;
}

void fk_model_add(fk_plan_info *plan, const fk_plan_info *other, double share) {
    plan->tensor_us += share * other->tensor_us;
    plan->exp_us += share * other->exp_us;
    plan->issue_us += share * other->issue_us;
    plan->smem_us += share * other->smem_us;
    plan->l2_us += share * other->l2_us;
    plan->hbm_us += share * other->hbm_us;
    plan->hbm_bytes += share * other->hbm_bytes;
    plan->model_us += share * other->model_us;
    name_bound(plan);
}
