@ include("piece/prelude.cu")
constexpr u32 smem_dout = $(layout.dout), smem_ds = $(layout.ds), smem_p = $(layout.p), smem_lse = $(layout.lse), smem_delta = $(layout.delta);
@ if plan.parted then
constexpr u32 raw_k = $(layout.raw_k), raw_v = $(layout.raw_v), raw_q = $(layout.raw), raw_dout = raw_q + block_m * d_pad * 4; // as they come, in floats
constexpr u32 raw_lse = raw_dout + block_m * dv_pad * 4, raw_delta = raw_lse + block_m * 4;
@ end

@ include("piece/primitives.cu")

// ---- pieces ----
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

@ -- The end works its tile out once more, rather than that registers keep it, where the loop has none to spare. (Elsewhere this can
@ -- cost registers.)
@ local few = layout.d_pad > 160 and (problem.dtype == "fp32" or not arch.async_copy)
@ local again = not problem.packed and (score.grads or few) and true or false
@ local dq_again = plan.dq_kernel and not problem.packed and (mask_k.residual or layout.d_pad > 160 and not arch.async_copy) and true or false
@ if again or dq_again then
@   include("piece/place.cu")

@ end
@ include("piece/schedule_backward.cu", { again = again })

@ include("piece/tile.cu")

@ include("piece/tile_copy.cu", { copy = "TileCopy", element = "Element", widens = false })

@ if plan.parted then
@   include("piece/float_parts.cu")

@   include("piece/part_tile.cu")

@ end
@ include(problem.dtype == "fp32" and "piece/gemm_fp32.cu" or "piece/gemm.cu")

// Warps stand in key_warps rows and col_warps columns. A warp owns rows_per_warp keys; of these it computes the scores of a
// share of the queries, and the gradients of a share of the columns.
constexpr int col_warps = $(layout.col_warps), key_warps = $(plan.warps // layout.col_warps);
constexpr int rows_per_warp = block_n / key_warps;
__device__ __forceinline__ int warp_row() { return threadIdx.x / 32 % key_warps * rows_per_warp; }
__device__ __forceinline__ int warp_col() { return threadIdx.x / 32 / key_warps * (block_m / col_warps); }
constexpr int m_atoms = rows_per_warp / 16;                                // atoms of 16 keys
constexpr int q_atoms = block_m / 8 / col_warps, s_atoms = q_atoms;        // atoms of 8 queries
@ local sliced = problem.slices > 1
@ local shares = sliced and "col_shares" or "col_warps" -- of the columns, of which a warp has one
@ if sliced then
constexpr int col_shares = slices * col_warps;
@ end
constexpr int dk_atoms = (d_pad / 16 + $(shares) - 1) / $(shares) * 2;     // atoms of 8 columns
constexpr int dv_atoms = (dv_pad / 16 + $(shares) - 1) / $(shares) * 2;
constexpr bool dk_short = dk_atoms * $(shares) != d_pad / 8, dv_short = dv_atoms * $(shares) != dv_pad / 8;

@ include("piece/backward_scores.cu")

@ include("piece/store.cu")
@ local fused, back, sums = score.derivatives_use_s, score.goes_back, score.sums and ", sums" or ""

@ -- Dropout: score_gradients takes it from P and dP alike. Where the way back needs the scores, dP loses it before, P on its way.
@ local drop = problem.dropout and fused and ", dropout" or "" -- a further argument
@ local function score_gradients()
@   if not fused then
            score_gradients(dp, s$(problem.dropout and ", delta, dropout" or ""));
@   end
@   if back and not fused then
            score_backward(dp, n, p, at$(sums));
@   end
@ end
@ local of_exponent = #score.terms > 0 and "log2_e" or "p.scale_log2" -- what scores are multiplied by
@ if problem.dtype == "fp32" then of_exponent = (#score.terms > 0 and "" or "p.scale, ") .. (problem.dropout and "p.dropout_scale" or "1.0f") end
@ local transposed = problem.dtype == "fp32" and ", true" or "" -- scores have the bits that the forward pass had; and start from 0
@ local low = problem.dtype == "fp32" and #score.terms == 0 and ", low" or "" -- s + low is S, of which terms take s alone
@ local more = mask.residual and "next >= 0" or "next >= tiles.begin"
@ -- One step of the loop over query tiles, of which `whole` ones need no mask. It stands there once: a branch a tile costs less than
@ -- twice the text.
@ local function q_step()
            const u32 tile_q = smem + smem_q + stage, tile_dout = smem + smem_dout + stage;
            const u32 lse = smem + smem_lse + stage, delta = smem + smem_delta + stage;
@   if arch.async_copy then
            cp_async_wait<0>();
@   end
            __syncthreads(); // $(plan.parted and "every warp is done with the tile before, and with P and dS" or "tile n is there, and every warp is done with dS and the other stage")
@   if plan.parted then
            part_tile<block_m, d_pad>(tile_q, smem + raw_q);
            part_tile<block_m, dv_pad>(tile_dout, smem + raw_dout);
            RowCopy::take(lse, smem + raw_lse);
            RowCopy::take(delta, smem + raw_delta);
            if ($(more)) issue(next);
            __syncthreads(); // tile n is there
@   elseif plan.stages == 2 then
            stage = stage_bytes - stage;
            if ($(more)) issue(next);
@   end
            float s[m_atoms][q_atoms][4], dp[m_atoms][q_atoms][4];
            fill(s, 0.0f);
@   if low ~= "" then
            float low[m_atoms][q_atoms][4];
@   end
            gemm_nt<block_n, block_m, d_pad$(transposed)$(transposed)>(s$(low), smem + smem_k, warp_row(), tile_q, warp_col()); // S^T = K Q^T
@   if #score.terms > 0 and not fused then
            score_tile(s, n, p, at);
@   end
            if (!whole) mask_tile(s, n, p, at);
@   if not fused then
            probabilities(s$(low), lse, $(of_exponent));
@   end
@   if problem.dropout and not fused then
            fill(dp, 0.0f);
@   else
            fill_minus_delta(dp, delta);
@   end
            gemm_nt<block_n, block_m, dv_pad$(transposed)>(dp, smem + smem_v, warp_row(), tile_dout, warp_col()); // dP^T = V dO^T
@   if problem.dropout and fused then
            drop_gradients(dp, delta, dropout);
@   end
@   if fused then
            score_backward(s, dp, lse, n, p, at$(sums));
@   end
@   if layout.col_warps == 1 and not sliced then
@     if problem.dropout then score_gradients() end
            gemm_pn(dv, s, tile_dout$(drop)); // dV += P^T dO
@     if not problem.dropout then score_gradients() end
@     if not plan.dq_kernel then
            share(dp, smem + smem_ds);
            __syncthreads();           // dS is there
            add_dq(dq_acc + i64(n) * block_m * d_pad, smem + smem_ds, smem + smem_k$(sliced and ", at.slice" or ""));
@     end
            gemm_pn(dk, dp, tile_q);   // dK += dS^T Q
@   else
@     score_gradients()
            share(s, smem + smem_p$(drop));
            share(dp, smem + smem_ds);
            __syncthreads(); // P and dS are there
            gemm_nn<block_n, block_m, dv_pad, dv_short>(dv, smem + smem_p, warp_row(), tile_dout, dv_col); // dV += P^T dO
            gemm_nn<block_n, block_m, d_pad, dk_short>(dk, smem + smem_ds, warp_row(), tile_q, dk_col);    // dK += dS^T Q
@     if not plan.dq_kernel then
            add_dq(dq_acc + i64(n) * block_m * d_pad, smem + smem_ds, smem + smem_k$(sliced and ", at.slice" or ""));
@     end
@   end
@   if problem.dropout then
            dropout.move(0, (next - n) * block_m);
@   end
@   if plan.stages == 1 and not plan.parted then
            __syncthreads(); // every warp is done with the tile
            if ($(more)) issue(next);
@   end
@ end
@ local leads = mask.leading_rows > 0
@ if leads then
@   include("piece/split_range.cu")

@   include("piece/leave_keys.cu")

@ end
extern "C" __global__ void __launch_bounds__(threads, $(plan.ctas_per_sm)) fk_backward(const __grid_constant__ Params p) {
    if (is_off(p)) return;
    const u32 smem = smem_base();
    int kv_head;
    Where at = this_tile(p, kv_head);
@ if arch.early_start then
    if (at.b < 0) {
        wait_for_previous(); // what follows counts on it
        return;
    }
@ else
    if (at.b < 0) return;
@ end
    const int num_keys = at.seqlen_k - at.k_first; // that are used
@ if sliced then
    const int columns = at.slice * col_warps + threadIdx.x / 32 / key_warps, dk_col = columns * dk_atoms, dv_col = columns * dv_atoms;
@ else
    const int dk_col = threadIdx.x / 32 / key_warps * dk_atoms, dv_col = threadIdx.x / 32 / key_warps * dv_atoms;
@ end

    TileCopy<block_n, d_pad, head_dim> copy_k(p.k + k_start(at, p.k_batch_stride, p.k_row_stride) + kv_head * p.k_head_stride, p.k_row_stride);
    TileCopy<block_n, dv_pad, head_dim_v> copy_v(p.v + k_start(at, p.v_batch_stride, p.v_row_stride) + kv_head * p.v_head_stride, p.v_row_stride);
    copy_k.move(at.k_first);
    copy_v.move(at.k_first);
    copy_k.template issue<false>(smem + $(plan.parted and "raw_k" or "smem_k"), num_keys);
    copy_v.template issue<false>(smem + $(plan.parted and "raw_v" or "smem_v"), num_keys);
@ if arch.early_start then
    wait_for_previous(); // row statistics, and sums of dQ that are cleared
    start_next();
@ end

@ if plan.parted then
    cp_async_wait<0>();
    part_tile<block_n, d_pad>(smem + smem_k, smem + raw_k);
    part_tile<block_n, dv_pad>(smem + smem_v, smem + raw_v);
@ end
    float dk[m_atoms][dk_atoms][4], dv[m_atoms][dv_atoms][4];
    fill(dk, 0.0f);
    fill(dv, 0.0f);
@ if sums ~= "" then
    ArraySums sums;
@ end
@ if mask.all_lead and problem.gqa then
    if (at.split >= 0) at.h += heads_before(p, at.split);
    for (int head = at.split < 0 ? p.heads_per_kv : p.part_heads; head > 0; --head, ++at.h) {
@ else
    for (int head = 0; head < p.heads_per_kv; ++head, ++at.h) {
@ end
@ if leads then
        TileRange tiles = tile_range(p, at);
        if (at.split >= 0) tiles = split_range(tiles, p, at);
@ else
        const TileRange tiles = tile_range(p, at);
@ end
@ if mask.residual then
        TileScan scan;
        int n = -1, next;
@ else
        int n = tiles.end - 1, next;
@ end
@ local function starts(head)
        const Element *q = p.q + q_start(at, p.q_batch_stride, p.q_row_stride) + $(head) * p.q_head_stride;
        const Element *dout = p.dout + q_start(at, p.dout_batch_stride, p.dout_row_stride) + $(head) * p.dout_head_stride;
        const i64 rows = padded_start(p, at, $(head));
@ end
@ local row_copies = "RowCopy copy_lse{p.lse_log2 + rows}, copy_delta{p.delta + rows};"
@ starts("at.h")
@ if not plan.dq_kernel then
        float *dq_acc = p.dq_acc + rows * d_pad;
@ end
        TileCopy<block_m, d_pad, head_dim> copy_q(q, p.q_row_stride);
        TileCopy<block_m, dv_pad, head_dim_v> copy_dout(dout, p.dout_row_stride);
        $(row_copies)
        u32 stage = 0;
        const auto issue = [&](int tile) { // into the free stage
@ -- No registers are left to keep addresses in beside products of wide heads that are no whole panels, sums of arrays of terms both ways, and
@ -- the widest heads where there are no asynchronous copies.
@ if layout.d_pad > 96 and layout.d_pad % 64 ~= 0 or fused and score.sums or not arch.async_copy and layout.d_pad > 160 then
            const int head_now = opaque(at.h);
@   starts("head_now")
            $(row_copies)
@ end
            copy_q.seek(q, tile * block_m);
            copy_dout.seek(dout, tile * block_m);
@ local function place(name) return "smem + " .. (plan.parted and "raw_" .. name or "smem_" .. name .. " + stage") end
            copy_lse.issue($(place("lse")), tile * block_m);
            copy_delta.issue($(place("delta")), tile * block_m);
            copy_q.template issue<false>($(place("q")), at.seqlen_q - tile * block_m);
            copy_dout.template issue<false>($(place("dout")), at.seqlen_q - tile * block_m);
        };
@ if problem.dropout then
        Dropout<true> dropout(p, at.b, at.h, at.k_first + warp_row(), n * block_m + warp_col());
@ end
        __syncthreads(); // every warp is done with the head before
@ if mask.residual then
        for (int end = tiles.end; (n = find_tile(scan, end, tiles, p, at)) >= 0; end = scan.first) {
            issue(n);
@   if problem.dropout then
            dropout.move(0, (n + 1) * block_m);
@   end
            for (; n >= 0; n = next) {
                const bool whole = scan.whole();
                next = next_tile(scan, n);
@   q_step()
            }
        }
@ else
        if (n >= tiles.begin) issue(n);
        for (; n >= tiles.begin; n = next) {
            const bool whole = n >= tiles.full_begin && n < tiles.full_end;
            next = n - 1;
@   q_step()
        }
@ end
@ if sums ~= "" then
        flush(sums, p, at);
@ end
    }

    float scale[m_atoms][2], one[m_atoms][2];
#pragma unroll
    for (int m = 0; m < m_atoms; ++m) {
        scale[m][0] = scale[m][1] = p.scale;
        one[m][0] = one[m][1] = 1.0f;
    }
@ if arch.async_copy then
    cp_async_wait<0>(); // a tile without queries never waited for K and V
@ end
    __syncthreads(); // every warp is done with K and V, where the gradients pass through
@ if problem.packed then
    at = this_tile(p, kv_head); // once more, rather than kept in registers, of which the loop has none to spare
@ elseif again then
    at = this_tile(p, kv_head, anew());
@ end
@ if arch.early_start and not plan.dq_kernel and not problem.packed then
    if (threadIdx.x == 0) red_release_inc(p.claims + at.b * p.num_heads_kv + kv_head);
@ end
@ if leads then
    int tile;
    const int split = part_of(p, int(opaque(blockIdx.y)), tile); // found once more: the walk has no register for it
    if (split >= 0) {
        leave_part(dk, p, at, split, kv_head, 0, 8 * dk_col, head_dim);
        leave_part(dv, p, at, split, kv_head, head_dim, 8 * dv_col, head_dim_v);
        return;
    }
@ end
    const int num_rows = at.$(problem.seqused_k and "num_keys" or "seqlen_k") - at.k_first; // keys that are not used have dk = dv = 0
    store_rows<block_n, d_pad, head_dim, dk_short>(dk, scale, smem + smem_k, warp_row(), dk_col, p.dk + k_start(at, p.dk_batch_stride, p.dk_row_stride) + kv_head * p.dk_head_stride +
                                         at.k_first * p.dk_row_stride, p.dk_row_stride, num_rows);
    store_rows<block_n, dv_pad, head_dim_v, dv_short>(dv, one, smem + smem_v, warp_row(), dv_col, p.dv + k_start(at, p.dv_batch_stride, p.dv_row_stride) + kv_head * p.dv_head_stride +
                                            at.k_first * p.dv_row_stride, p.dv_row_stride, num_rows);
}

@ if problem.dropout then
@   include("piece/keep_mask.cu")

@ end
@ if packs_blocks then
@   include("piece/pack_blocks.cu")

@ end
@ if mask.leading_rows > 0 then
@   include("piece/combine_keys.cu")

@ end
@ include("piece/backward_around.cu")
@ if plan.dq_kernel then

@   include("kernel/backward_dq_mma.cu", { walk = "k", plan = dq_plan, layout = dq_layout, mask = mask_k, again = dq_again })
@ end
@ if score.grads then

@   include("piece/array_grad_around.cu")
@ end
@ if problem.packed then

@   include("piece/clear_rest.cu")
@ end
