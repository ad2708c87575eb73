/* The cost model of the backward pass's kernel of dq, where it has one: a CTA owns a tile of queries and walks over
 * tiles of keys, as in the forward pass. One visit, in the units of model.c: tensor   three products: 2 block_m block_n
 * (2 d_pad + dv_pad) / mma_flops exp      block_m block_n / exp_rate smem     every warp reads all of K twice and of V
 * once, and its own rows of Q and dO Nothing is added in global memory. Of slices each has its share of dS K. */
#include "plan.h"

#include <math.h>

/* Instructions (lanes) of one pair: P is a multiply-add and ex2, dS a product, half a conversion, dP's start; and what
 * dropout adds. */
static const double PAIR_LANES = 4.5, DROPOUT_LANES = 4.5;
static const double MASK_LANES = 4.0;
static const double COPY_LANES_ASYNC = 2.0, COPY_LANES_STAGED = 4.0;
static const double BARRIER_CLOCKS = 200.0; /* as in model.c; one for a visit, two with a single stage */
static const double L2_SHARE = 0.5;

/* What the kernel declares, and what ptxas (CUDA 13.0) keeps besides, fitted as in model.c. */
int fk_dq_registers(const fk_problem *p, const fk_tile *tile, const fk_smem_layout *layout, const fk_arch *arch) {
    const int rows = tile->block_m / tile->warps;
    const int slices = fk_slices(p), chunks = (layout->d_pad / 16 + slices - 1) / slices;
    const int acc_dq = rows * 16 * chunks / 32, acc_s = 2 * rows * tile->block_n / 32; /* S and dP */
    const int operands = rows / 4 + 4, stats = rows / 8 * 2;
    const int features = (p->num_scores ? 16 : 0) + (p->dropout ? 12 : 0) + (p->packed || p->seqused_k ? 8 : 0);
    /* Operands split in two; where the loop over a row is unrolled far, those of several steps. */
    const bool unrolled = layout->d_pad > 64 || layout->d_pad % 32 || layout->dv_pad > 64 || layout->dv_pad % 32;
    const int splits = p->dtype == FK_FP32 ? 45 + (unrolled ? tile->block_n : 0) : 0;
    const int sum = acc_dq + acc_s + operands + stats + features + splits + (arch->async_copy ? 36 : 44);
    return rows == 16 && tile->block_n == 16 && sum > 255 ? 255
                                                          : sum; /* there is nothing smaller: better spills than none */
}

fk_visit_cost fk_dq_visit(const fk_problem *p, const fk_device_info *device, const fk_arch *arch,
                          const fk_smem_layout *layout, const fk_plan_info *plan, double partial_share) {
    const double pairs = (double)plan->block_m * plan->block_n;
    const double d = layout->d_pad, dv = layout->dv_pad, share = 1.0 / fk_slices(p);
    const double flops = 2.0 * pairs * (d + dv + share * d);
    const fk_mma_kind mma = fk_model_mma(p, arch, false);
    const double k_bytes = mma.bytes * plan->block_n * d, v_bytes = mma.bytes * plan->block_n * dv;
    const double own_bytes = mma.bytes * plan->block_m * (d + dv), tile_bytes = k_bytes + v_bytes;
    const double read_bytes = plan->warps * ((1 + share) * k_bytes + v_bytes) + own_bytes;
    const double gemm_lanes = fk_model_gemm_lanes(&mma, flops, read_bytes, plan->warps * share * k_bytes);
    const double copy_lanes = tile_bytes / 16.0 * (arch->async_copy ? COPY_LANES_ASYNC : COPY_LANES_STAGED);
    const double gemm_issue = (gemm_lanes + copy_lanes) / device->issue_rate;
    const double pair_issue =
        pairs * (PAIR_LANES + (p->dropout ? DROPOUT_LANES : 0) + MASK_LANES * partial_share) / device->issue_rate;
    fk_visit_cost cost = {
        .tensor = flops * mma.passes / device->mma_flops,
        .exp = pairs / device->exp_rate,
        .issue = gemm_issue + pair_issue,
        .smem = (read_bytes + tile_bytes) / device->smem_rate,
    };
    cost.serial = fmax(fmax(cost.tensor, cost.smem), gemm_issue) + fmax(cost.exp, pair_issue) +
                  BARRIER_CLOCKS * (plan->stages == 1 ? 2 : 1);
    return cost;
}

/* Q, dO, dQ and the row statistics pass once. K and V pass once if the heads that run at a time fit L2, else once for
 * each wave over them, and never more than once for each visit. */
double fk_dq_hbm_bytes(const fk_problem *p, const fk_device_info *device, const fk_shape *shape,
                       const fk_plan_info *plan, const fk_tile_totals *tiles) {
    const double heads = (double)shape->batch * (double)shape->num_heads_q;
    const double kv_heads = (double)shape->batch * (double)shape->num_heads_kv;
    const double bytes = fk_dtype_bytes(p->dtype), width = bytes * (p->head_dim + p->head_dim_v);
    const double once = heads * (double)shape->seqlen_q * (width + bytes * p->head_dim + 8);
    const double kv_head = (double)shape->seqlen_k * width;
    const double slots = (double)device->num_sms * plan->ctas_per_sm, ctas = heads * (double)tiles->num_ctas;
    const double heads_at_a_time = fmin(kv_heads, ceil(slots / ((double)tiles->num_ctas * (heads / kv_heads))));
    double kv = kv_heads * kv_head;
    if (heads_at_a_time * kv_head > L2_SHARE * (double)device->l2_bytes)
        kv = fmax(kv, ceil(ctas / slots) * heads_at_a_time * kv_head);
    return once + fmin(kv, ctas * tiles->mean_visited * plan->block_n * width);
}
