// ---- dQ in a kernel of its own: a CTA owns a tile of queries and walks over tiles of keys, as in the forward pass. S, P and dP are
// computed once more, and nothing is added in global memory: dQ has the same bits in every run. ----
//
@ for _, line in ipairs(plan.summary) do
//   $(line)
@ end
namespace dq_tiles {
constexpr int block_m = $(plan.block_m), block_n = $(plan.block_n), threads = $(plan.threads);

// Shared memory: $(layout.bytes) bytes
constexpr u32 smem_q = $(layout.q), smem_dout = $(layout.dout), smem_k = $(layout.k), smem_v = $(layout.v);
constexpr u32 stage_bytes = $(layout.stage_bytes);

// A warp owns rows_per_warp query rows and sees every key of a tile.
constexpr int rows_per_warp = $(plan.rows_per_warp);
__device__ __forceinline__ int warp_row() { return threadIdx.x / 32 * rows_per_warp; }
__device__ __forceinline__ int warp_col() { return 0; }
constexpr int m_atoms = rows_per_warp / 16; // atoms of 16 query rows
constexpr int s_atoms = block_n / 8;        // atoms of 8 keys
@ local sliced = problem.slices > 1
@ if sliced then
constexpr int dq_atoms = (d_pad / 16 + slices - 1) / slices * 2; // atoms of 8 columns of a slice
constexpr bool dq_short = dq_atoms * slices != d_pad / 8;
@ else
constexpr int dq_atoms = d_pad / 8;         // atoms of 8 columns
@ end

@ include("piece/schedule.cu")

@ include("piece/mask.cu", { leads = false })

@ include("piece/backward_rows.cu")

@ -- Score terms: the way there and the way back are one where the way back needs the scores.
@ local fused, back = score.derivatives_use_s, false
@ for _, term in ipairs(score.terms) do back = back or term.ds end
@ if #score.terms > 0 and not fused then
@   include("piece/score.cu", { estimates = false, along = false, ahead = false, weighs = false })

@ end
@ if back or fused then
@   include("piece/score_backward.cu")

@ end
@ local of_exponent = #score.terms > 0 and "log2_e" or "p.scale_log2" -- what scores are multiplied by
@ if problem.dtype == "fp32" then of_exponent = (#score.terms > 0 and "" or "p.scale, ") .. (problem.dropout and "p.dropout_scale" or "1.0f") end
@ local low = problem.dtype == "fp32" and #score.terms == 0 and ", low" or "" -- s + low is S, of which terms take s alone
@ local more = mask.residual and "next >= 0" or "next >= tiles.begin"
@ -- One step of the loop over key tiles, of which `whole` ones need no mask.
@ local function kv_step()
        const u32 tile_k = smem + smem_k + stage, tile_v = smem + smem_v + stage;
@   if arch.async_copy then
        cp_async_wait<0>();
@   end
        __syncthreads(); // tile n is there, and every warp is done with the other stage
@   if plan.stages == 2 then
        stage = stage_bytes - stage;
        if ($(more)) issue(next);
@   end
        float s[m_atoms][s_atoms][4], dp[m_atoms][s_atoms][4];
        fill(s, 0.0f);
@   if low ~= "" then
        float low[m_atoms][s_atoms][4];
@   end
        gemm_nt<block_m, block_n, d_pad$(problem.dtype == "fp32" and ", false, true" or "")>(s$(low), smem + smem_q, warp_row(), tile_k); // S = Q K^T
@   if #score.terms > 0 and not fused then
        score_tile(s, n, p, at);
@   end
        if (!whole) mask_tile(s, n, p, at);
@   if not fused then
        probabilities(s$(low), lse, $(of_exponent));
@   end
        fill_minus_delta(dp, delta);
        gemm_nt<block_m, block_n, dv_pad>(dp, smem + smem_dout, warp_row(), tile_v); // dP = dO V^T
@   if problem.dropout then
        drop_gradients(dp, delta, dropout);
@   end
@   if fused then
        score_backward(s, dp, lse, n, p, at);
@   else
        score_gradients(dp, s);
@     if back then
        score_backward(dp, n, p, at);
@     end
@   end
        gemm_pn$(sliced and "<d_pad, dq_short>" or "")(dq, dp, tile_k$(sliced and ", at.slice * dq_atoms" or "")); // dQ += dS K
@   if problem.dropout then
        dropout.move(0, (next - n) * block_n);
@   end
@   if plan.stages == 1 then
        __syncthreads(); // every warp is done with the tile
        if ($(more)) issue(next);
@   end
@ end
__device__ __forceinline__ void run(const Params &p) {
    const u32 smem = smem_base();
    const Where at = this_tile(p);
    if (at.b < 0) return;
    const TileRange tiles = tile_range(p, at);
@ if mask.residual then
    TileScan scan;
    int n = find_tile(scan, tiles.end, tiles, p, at), next;
@ else
    int n = tiles.end - 1, next;
@ end

@ local function starts(head)
    const int kv_head = $(head)$(problem.gqa and " / p.heads_per_kv" or "");
    const Element *k = p.k + k_start(at, p.k_batch_stride, p.k_row_stride) + kv_head * p.k_head_stride;
    const Element *v = p.v + k_start(at, p.v_batch_stride, p.v_row_stride) + kv_head * p.v_head_stride;
@ end
@ starts("at.h")
    TileCopy<block_n, d_pad, head_dim, threads> copy_k(k, p.k_row_stride);
    TileCopy<block_n, dv_pad, head_dim_v, threads> copy_v(v, p.v_row_stride);
    u32 stage = 0;
    const auto issue = [&](int tile) { // into the free stage
@ if mask.residual or fused then -- looking for tiles, and terms both ways, leave no registers to keep addresses in
@   starts("opaque(at.h)")
@ end
        copy_k.seek(k, tile * block_n);
        copy_v.seek(v, tile * block_n);
        copy_k.template issue<false>(smem + smem_k + stage, at.seqlen_k - tile * block_n);
        copy_v.template issue<false>(smem + smem_v + stage, at.seqlen_k - tile * block_n);
    };
    float dq[m_atoms][dq_atoms][4], lse[m_atoms][2], delta[m_atoms][2];
    fill(dq, 0.0f);
    if (n >= tiles.begin) {
        const int num_rows = at.seqlen_q - at.q_first;
        TileCopy<block_m, d_pad, head_dim, threads> copy_q(p.q + q_start(at, p.q_batch_stride, p.q_row_stride) + at.h * p.q_head_stride, p.q_row_stride);
        TileCopy<block_m, dv_pad, head_dim_v, threads> copy_dout(p.dout + q_start(at, p.dout_batch_stride, p.dout_row_stride) + at.h * p.dout_head_stride, p.dout_row_stride);
        copy_q.move(at.q_first);
        copy_dout.move(at.q_first);
        copy_q.template issue<false>(smem + smem_q, num_rows);
        copy_dout.template issue<false>(smem + smem_dout, num_rows);
        issue(n);
        load_rows(lse, p.lse_log2 + padded_start(p, at, at.h) + at.q_first, num_rows, -NEG_INF);
        load_rows(delta, p.delta + padded_start(p, at, at.h) + at.q_first, num_rows, 0.0f);
    }
@ if problem.dropout then
    Dropout<false> dropout(p, at.b, at.h, at.q_first + warp_row(), n * block_n);
@ end
@ if mask.residual then
    while (n >= 0) {
        for (; n >= 0; n = next) {
            const bool whole = scan.whole();
            next = next_tile(scan, n);
@   kv_step()
        }
        n = find_tile(scan, scan.first, tiles, p, at);
        if (n < 0) break;
        issue(n);
@   if problem.dropout then
        dropout.move(0, (n + 1) * block_n);
@   end
    }
@ else
    for (; n >= tiles.begin; n = next) {
        const bool whole = n >= tiles.full_begin && n < tiles.full_end;
        next = n - 1;
@   kv_step()
    }
@ end

    float scale[m_atoms][2];
#pragma unroll
    for (int m = 0; m < m_atoms; ++m) scale[m][0] = scale[m][1] = p.scale;
    const Where own = $(again and "this_tile(p, anew())" or "at");
    // They pass through the warp's own rows of Q, with which it is done.
    store_rows<block_m, d_pad, head_dim, $(sliced and "dq_short" or "false")>(dq, scale, smem + smem_q, warp_row(), $(sliced and "own.slice * dq_atoms" or "0"), p.dq + q_start(own, p.dq_batch_stride, p.dq_row_stride) +
                                                own.h * p.dq_head_stride + own.q_first * p.dq_row_stride, p.dq_row_stride, own.seqlen_q - own.q_first);
}
}

extern "C" __global__ void __launch_bounds__($(plan.threads), $(plan.ctas_per_sm)) fk_backward_dq_tiles(const __grid_constant__ Params p) {
    if (is_off(p)) return;
    dq_tiles::run(p);
@ if arch.early_start then
    if (blockIdx.x + blockIdx.y + blockIdx.z == 0) wait_for_previous(); // this kernel ends after it
@ end
}
