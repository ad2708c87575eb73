@ local own, own_block = "q", "block_m"
@ if walk == "q" then own, own_block = "k", plan.family == "wgmma" and "own_n" or "block_n" end
// For debugging: which weights are kept, 1 or 0 for every pair of query and key, as this kernel's warps find it in their
// operands. A CTA takes a tile of $(own) of one head and walks over all others; $(own) and $(walk) count from the start of a sequence.
extern "C" __global__ void __launch_bounds__(threads) fk_keep_mask(const __grid_constant__ Params p) {
    const int lane = threadIdx.x % 32, head = blockIdx.y + gridDim.y * blockIdx.z;
    const int b = quotient(head, p.num_heads_q, p.heads_inverse), first = blockIdx.x * $(own_block) + warp_row();
    if (b >= p.batch) return;
    Dropout<$(own == "k" and "true" or "false")> dropout(p, b, head - b * p.num_heads_q, first, warp_col());
    u8 *out = p.keep_mask + i64(head) * p.seqlen_q * p.seqlen_k;
@ local halves = walk == "q" and plan.halved -- a warp has the one, and then the other
    for (int n = 0$(halves and ", half = 0" or ""); n * $(plan.score_block) < p.seqlen_$(walk); $(halves and "n += half, half ^= 1" or "++n")) {
#pragma unroll
        for (int m = 0; m < m_atoms; ++m)
#pragma unroll
            for (int j = 0; j < s_atoms / 2; ++j) {
@ if problem.dtype == "fp32" then
                float a[2][4] = {{1, 1, 1, 1}, {1, 1, 1, 1}};
@ elseif plan.operands == "e4m3" then
                u32 a[2] = {~0u, ~0u};
@ else
                u32 a[4] = {~0u, ~0u, ~0u, ~0u};
@ end
                $(plan.operands == "e4m3" and "drop_bytes(dropout, a, m, j)" or "dropout(a, m, j)");
#pragma unroll
                for (int i = 0; i < 8; ++i) { // column i % 2 of row half i / 2 % 2 and column half i / 4
                    const int $(own) = first + 16 * m + i / 2 % 2 * 8 + lane / 4;
                    const int $(walk) = n * $(plan.score_block) + warp_col() + $(halves and "half * " .. layout.weigh_cols .. " + " or "")16 * j + i / 4 * 8 + lane % 4 * 2 + i % 2;
@ local kept = problem.dtype == "fp32" and "a[i / 4][i % 4] != 0.0f" or "a[i / 2] >> i % 2 * 16 & 1"
@ if plan.operands == "e4m3" then kept = "a[i / 2 % 2] >> (i % 2 + i / 4 * 2) * 8 & 1" end
                    if (q < p.seqlen_q && k < p.seqlen_k) out[i64(q) * p.seqlen_k + k] = $(kept);
                }
            }
        dropout.move(0, $(halves and ("half ? %s - %d : %d"):format(plan.score_block, layout.weigh_cols, layout.weigh_cols) or plan.score_block));
    }
}
