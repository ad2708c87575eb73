@ include("piece/prelude.cu")
constexpr u32 smem_ds = $(layout.ds), smem_p = $(layout.p), smem_dq = $(layout.dq), smem_rows = $(layout.rows);
constexpr u32 stage_bytes = $(layout.stage_bytes), share_bytes = $(layout.share_bytes);
constexpr int own_n = $(layout.own_n); // keys of a CTA
@ local pair, halved = plan.cluster > 1 and not plan.halved, plan.halved
@ if pair then
constexpr u32 smem_dout = $(layout.dout), smem_other_k = $(layout.other_k), smem_other_ds = $(layout.other_ds), ds_bytes = $(layout.ds_bytes);
@ end
@ if plan.adders then
constexpr u32 dq_bytes = $(layout.dq_bytes);
@ end
@ local heads = plan.head_rows > 0 -- a CTA has all keys of a head

@ include("piece/primitives.cu")

// ---- pieces ----
@ local staged = {}
@ include("piece/staged.cu", { staged = staged })
@ include("piece/params.cu")

@ if #mask.upper + #mask.lower + #score.terms + #score.sinks > 0 or mask.residual then
@   include("piece/interval.cu")

@ end
@ if #arrays > 0 then
@   include("piece/array.cu")

@ end
@ if score.grads then
@   include("piece/array_grad.cu")

@ end
@ include("piece/sequence.cu")

@ include("piece/schedule_backward.cu")

@ include("piece/tile.cu")

// Queries of a tile come in parts, whose scores become gradients one after another.
constexpr int part_m = 64, parts = block_m / part_m;

@ include("piece/gemm_wgmma_backward.cu")

@ local shared = layout.col_warps -- warpgroups that share keys
@ if shared == 1 then
// A warp owns 16 keys and sees every query of a tile; four warps make a warpgroup. The last warpgroup loads.
__device__ __forceinline__ int warp_row() { return threadIdx.x / 32 * 16; }
__device__ __forceinline__ int warp_col() { return 0; }
@ else
// A warp owns 16 keys, as its neighbours of the other warpgroups do: of these it computes the scores of a share of the queries, and
// the gradients of a share of the columns. The last warpgroup loads.
__device__ __forceinline__ int warp_row() { return threadIdx.x / 32 % 4 * 16; }
__device__ __forceinline__ int warp_col() { return threadIdx.x / 128 * $(layout.score_cols)$(halved and " + cluster_rank() * " .. layout.weigh_cols or ""); }
@ end
constexpr int m_atoms = 1; // atoms of 16 keys
constexpr int q_atoms = $(layout.weigh_cols // 8), s_atoms = q_atoms; // atoms of 8 queries
constexpr int dk_atoms = $(layout.dk_cols // 8), dv_atoms = $(layout.dv_own_cols // 8), dq_atoms = $(layout.dq_cols // 8); // atoms of 8 columns

@ include("piece/backward_scores.cu")

@ local fused, back, sums = score.derivatives_use_s, score.goes_back, score.sums and ", sums" or ""
@ local splits = mask.leading_rows > 0 -- walks over queries may be shared among CTAs
@ if splits then
@   include("piece/split_range.cu")

@ end
@ include("piece/walk.cu")
@ include("piece/row_walk.cu")

@ include("piece/pipeline_backward.cu", { staged = staged })

@ if staged.array then
@   include("piece/array_tile.cu", { staged = staged })

@ end
@ include("piece/send_rows.cu")

@ if heads then
@   include("piece/head_rows.cu")

@ end
@ local adders = plan.adders -- dQ's adds are of other warps, or wait for their leave
@ if adders then
@   include("piece/adds.cu")

@ end
// ---- the consumers ----
@ if splits then
@   include("piece/leave_keys.cu")

@ end
@ local consumer = halved and "piece/consumer_backward_halved.cu" or "piece/consumer_backward.cu"
@ include(consumer, { staged = staged, adders = adders, pair = pair, shared = shared, fused = fused, back = back, sums = sums, splits = splits })

extern "C" __global__ void $(plan.cluster > 1 and "__cluster_dims__(2, 1, 1) " or "")__launch_bounds__(threads, $(plan.ctas_per_sm)) fk_backward(const __grid_constant__ Params p) {
    if (is_off(p)) return;
@ if heads and problem.packed then
    start_next(); // fk_backward_rest, which needs nothing of this kernel
@ end
    const u32 smem = smem_base();
    if (threadIdx.x == 0) init_barriers($(staged.array and "p, " or "")smem);
@ if heads then
    first_statistics(p);
@ else
    wait_for_previous(); // who wrote the row statistics
@ end
    $(plan.cluster > 1 and "cluster_sync" or "__syncthreads")();
    const int warp = __shfl_sync(full_warp, threadIdx.x / 32, 0); // which the compiler then knows to be the same for all lanes
    if (warp >= 4 * consumers) {
        setmaxnreg_dec<$(layout.loading_registers)>();
        if (warp == 4 * consumers) Producer(p, smem).run();
@ if staged.grad then
        else if (warp == 4 * consumers + 3 && p.array_grad[$(staged.slot)].boxed) GradientSender(p, smem).run();
@ end
@ if heads then
        else if (warp <= 4 * consumers + row_warps) RowStatistics(p, smem, warp - 4 * consumers - 1).run();
@ elseif adders then
        else if (warp <= 4 * consumers + adders) Adder(p, smem, warp - 4 * consumers - 1).run();
@ end
    } else {
        setmaxnreg_inc<$(layout.registers_given)>();
        Consumer(p, smem, warp).run();
    }
@ if plan.cluster > 1 then
    cluster_sync(); // the other CTA may still $(pair and "give back what this one filled" or "be sent to")
@ end
}

@ if problem.dropout then
@   include("piece/keep_mask.cu")

@ end
@ if packs_blocks then
@   include("piece/pack_blocks.cu")

@ end
@ if not heads then
@   include("piece/backward_around.cu")
@ end
@ if splits then

@   include("piece/combine_keys.cu")
@ end
@ if score.grads then

@   include("piece/array_grad_around.cu")
@ end
@ if staged.array then

@   include("piece/align.cu", { staged = staged })
@ end
@ if problem.packed then

@   include("piece/clear_rest.cu")
@ end
