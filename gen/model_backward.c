/* The cost model of the backward pass (FlashAttention-2, algorithm 2): a CTA owns a tile of keys and walks over tiles
 * of queries. Warps stand in rows (of keys) and columns (of queries; one column, unless rows would be too short). One
 * visit, in the units of model.c:
 *     tensor   five products: 2 block_m block_n (3 d_pad + 2 dv_pad) / mma_flops
 *     exp      block_m block_n / exp_rate: P is computed again
 *     smem     each row of warps reads Q and dO twice, each column K and V once; dQ takes dS and K once more; where
 * there are several columns, P and dS pass through shared memory for dV and dK l2       4 block_m d_pad bytes of fp32
 * adds to dQ's sum, which no cache of an SM holds Two small kernels run before and after it, at the speed of HBM.
 * Where dQ has a kernel of its own (model_dq.c), its product, its reads and its adds are left out. */
#include "plan.h"

#include <math.h>

/* Instructions (lanes) of one pair: P is a multiply-add and ex2, dS a product, half a conversion and half a store;
 * and what dropout adds (docs/dropout.md). */
static const double PAIR_LANES = 4.5, DROPOUT_LANES = 5.5;
static const double MASK_LANES = 4.0;
static const double COPY_LANES_ASYNC = 2.0, COPY_LANES_STAGED = 4.0;
static const double BARRIER_CLOCKS = 200.0; /* as in model.c; two for a visit, three with a single stage */
/* Shares by which a visit of fp32 takes longer where one CTA has the SM to itself, and where P and dS pass through
 * shared memory as parts, for which its warps wait: fitted to head dims 32 to 128 on the H200. */
static const double ALONE = 0.15, THROUGH_SMEM = 0.15;
/* Bytes that one SM adds to L2 in a clock. */
static const double L2_ADD_RATE = 16.0;
static const double L2_SHARE = 0.5;

/* Warps share dQ's tile in rows of 16 queries and columns so that they read least (templates/piece/backward_tile.cu).
 * Returns the bytes that they read. */
static double dq_bytes(const fk_mma_kind *mma, const fk_smem_layout *layout, int block_m, int block_n, int warps) {
    double least = 0;
    for (int rows = 1; rows <= warps && rows <= block_m / 16; ++rows) {
        if (warps % rows) continue;
        const double bytes = mma->bytes * block_n * ((double)warps / rows * block_m + (double)rows * layout->d_pad);
        if (rows == 1 || bytes < least) least = bytes;
    }
    return least;
}

/* Columns of a warp, in whole atoms, of an accumulator that `warps` share. */
static int columns_of(int columns, int warps) {
    return (columns / 16 + warps - 1) / warps * 16;
}

/* What the kernel declares: the accumulators of dK and dV stay; beside them live S and dP, or dQ's share. The last
 * terms are what ptxas (CUDA 13.0) keeps besides, fitted as in model.c. */
int fk_backward_registers(const fk_problem *p, const fk_tile *tile, const fk_smem_layout *layout, const fk_arch *arch) {
    const int cols = layout->col_warps, rows = tile->block_n * cols / tile->warps;
    const int shares = cols * fk_slices(p);
    const int acc_dkv = rows * (columns_of(layout->d_pad, shares) + columns_of(layout->dv_pad, shares)) / 32;
    const int acc_s = 2 * rows * (tile->block_m / cols) / 32; /* S and dP */
    const int atoms = tile->block_m / 16 * (layout->d_pad / 16) / tile->warps / fk_slices(p);
    const int acc_dq = tile->dq_kernel ? 0 : 8 * (atoms < 1 ? 1 : atoms < layout->dq_share ? atoms : layout->dq_share);
    const int operands = rows / 4 + 4; /* one step's A, one ldmatrix of B */
    const int fixed = arch->async_copy ? 50 : 54;
    const int parts = p->dtype == FK_FP32 ? acc_s / 2 + fk_model_part_registers(layout, rows) : 0;
    return acc_dkv + (acc_s > acc_dq ? acc_s : acc_dq) + operands + fixed + parts;
}

fk_visit_cost fk_backward_visit(const fk_problem *p, const fk_device_info *device, const fk_arch *arch,
                                const fk_smem_layout *layout, const fk_plan_info *plan, double partial_share) {
    const double pairs = (double)plan->block_m * plan->block_n;
    const int cols = layout->col_warps, rows = plan->warps / cols;
    const bool adds = !plan->dq_kernel; /* to dQ's sum */
    const double d = layout->d_pad, dv = layout->dv_pad, slices = fk_slices(p);
    const double columns = d + dv + ((adds ? 2 : 1) * d + dv) / slices; /* of S and dP all, of sums a slice's */
    const fk_tile tile = fk_plan_tile(p, plan);
    const bool parted = fk_tile_parted(p, &tile);
    const fk_mma_kind mma = fk_model_mma(p, arch, parted);
    const double tile_bytes = mma.bytes * plan->block_m * (d + dv), own_bytes = mma.bytes * plan->block_n * (d + dv);
    const double shared_bytes = (cols > 1 ? 2 : adds ? 1 : 0) * mma.bytes * pairs; /* dS, and P */
    const double dq_read = adds ? dq_bytes(&mma, layout, plan->block_m, plan->block_n, plan->warps) : 0;
    const double read_bytes = 2 * rows * tile_bytes + cols * own_bytes + (cols > 1 ? cols * shared_bytes : 0) + dq_read;
    const double add_bytes = adds ? 4.0 * plan->block_m * d / slices : 0;
    const double flops = 2.0 * pairs * columns;
    const double split = plan->block_m * (d + dv) + 2 * pairs; /* Q and dO, P and dS */
    const double gemm_lanes = parted ? fk_model_parted_lanes(&mma, flops, read_bytes, split)
                                     : fk_model_gemm_lanes(&mma, flops, read_bytes, rows * tile_bytes + dq_read);
    const double copy_lanes = tile_bytes / 16.0 * (arch->async_copy ? COPY_LANES_ASYNC : COPY_LANES_STAGED);
    const double add_lanes = add_bytes / (arch->vector_add ? 16.0 : 4.0);
    const double gemm_issue = (gemm_lanes + copy_lanes + add_lanes) / device->issue_rate;
    const double pair_issue =
        pairs * (PAIR_LANES + (p->dropout ? DROPOUT_LANES : 0) + MASK_LANES * partial_share) / device->issue_rate;
    fk_visit_cost cost = {
        .tensor = flops * mma.passes / device->mma_flops,
        .exp = pairs / device->exp_rate,
        .issue = gemm_issue + pair_issue,
        .smem = (read_bytes + tile_bytes + shared_bytes) / device->smem_rate,
        .l2 = add_bytes / L2_ADD_RATE,
    };
    if (p->dtype == FK_FP32) {
        cost.chained = cost.tensor + gemm_issue;
        cost.alone = (plan->ctas_per_sm == 1 ? ALONE : 0) + (parted && cols > 1 ? THROUGH_SMEM : 0);
    }
    cost.serial = fmax(fmax(fmax(cost.tensor, cost.smem), fmax(gemm_issue, cost.l2)), cost.chained) +
                  fmax(cost.exp, pair_issue) + BARRIER_CLOCKS * ((plan->stages == 1 ? 2 : 1) + (shared_bytes > 0));
    return cost;
}

/* K, V, dK and dV pass once. Q, dO, the row statistics and dQ's sum pass once if the heads that run at a time fit L2,
 * else once for each wave over them (family wgmma: model_l2.c), and never more than once for each visit. A sum is read
 * and written each time, but for the first where the first add stores. */
void fk_backward_hbm_bytes(const fk_problem *p, const fk_device_info *device, const fk_smem_layout *layout,
                           const fk_shape *shape, const fk_plan_info *plan, const fk_tile_totals *tiles,
                           double *tiles_bytes, double *around_bytes) {
    const double heads = (double)shape->batch * (double)shape->num_heads_q, seqlen_q = (double)shape->seqlen_q;
    const double kv_heads = (double)shape->batch * (double)shape->num_heads_kv;
    const double bytes = fk_dtype_bytes(p->dtype), width = bytes * (p->head_dim + p->head_dim_v);
    if (plan->head_rows) { /* q, k, v, o, dout, lse, dq, dk and dv once, and statistics, in one kernel */
        *tiles_bytes = kv_heads * (double)shape->seqlen_k * 2 * width + heads * seqlen_q * (2 * width + 4 + 8);
        *around_bytes = 0;
        return;
    }
    const double sum = plan->dq_kernel ? 0 : 4.0 * layout->d_pad;
    const double once = kv_heads * (double)shape->seqlen_k * 2 * width;
    const double row = width + 8 + 2 * sum; /* q, dout, lse, delta; the sum read and written */
    const bool stored = plan->q_stages == 2;
    const double slots = (double)device->num_sms / fk_plan_cluster(p, plan) * plan->ctas_per_sm,
                 ctas = kv_heads * (double)tiles->num_ctas;
    const double group = heads / kv_heads; /* query heads that one CTA goes through */
    const double heads_at_a_time = fmin(kv_heads, ceil(slots / (double)tiles->num_ctas)) * group;
    const double visited = ctas * group * tiles->mean_visited * plan->block_m * row;
    double q = heads * seqlen_q * row;
    if (layout->wgmma)
        q += q * fk_model_passes_again(p, device, layout, shape, plan, tiles);
    else if (heads_at_a_time * seqlen_q * row > L2_SHARE * (double)device->l2_bytes)
        q = fmax(q, ceil(ctas / slots) * heads_at_a_time * seqlen_q * row);
    *tiles_bytes = once + fmin(q, visited) - (stored ? heads * seqlen_q * sum : 0);
    const double cleared = stored ? 0 : sum;
    const double delta =
        2 * bytes * p->head_dim_v + 4 + 8 + cleared; /* o, dout and lse in; statistics and a cleared sum out */
    const double dq = plan->dq_kernel ? 0 : sum + bytes * p->head_dim;
    *around_bytes = heads * seqlen_q * (delta + dq);
}
