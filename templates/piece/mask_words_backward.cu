@ -- A mask that comes as words of 32 keys: mask.words is which.
// Sets the scores of unseen pairs of tile n (of part_m queries) to -inf. A warp's 16 keys lie in one word of each query: its lanes read
// those of all queries, and pass them on.
__device__ __forceinline__ void mask_tile(float (&s)[m_atoms][s_atoms][4], int n, const Params &p, const Where &at) {
    constexpr int queries = 8 * s_atoms;
    const int lane = lane_anew(), first_q = n * part_m + warp_col();
@ scalars("")
#pragma unroll
    for (int m = 0; m < m_atoms; ++m) {
        const int first = opaque(at.k_first) + warp_row() + 16 * m, word = first >> 5;
        u32 words[(queries + 31) / 32];
#pragma unroll
        for (int j = 0; j < queries; j += 32) {
            const int q = min(first_q + j + lane, at.seqlen_q - 1);
            words[j / 32] = u32($(mask.words));
        }
        u32 bit[2];
@ if #mask.upper_at > 0 then
        int q_max[2];
@ end
@ if #mask.lower_at > 0 then
        int q_min[2];
@ end
#pragma unroll
        for (int r = 0; r < 2; ++r) {
            const int row = first + lane / 4 + 8 * r;
            bit[r] = row < at.seqlen_k ? 1u << row % 32 : 0;
@ if #mask.upper_at + #mask.lower_at > 0 and mask.uses.k then
            const int k = row;
@ end
@ for i, bound in ipairs(mask.upper_at) do
            q_max[r] = $(i > 1 and "min(q_max[r], " .. bound .. ")" or bound);
@ end
@ for i, bound in ipairs(mask.lower_at) do
            q_min[r] = $(i > 1 and "max(q_min[r], " .. bound .. ")" or bound);
@ end
        }
#pragma unroll
        for (int i = 0; i < s_atoms * 2; ++i) {
            const int place = 8 * (i / 2) + i % 2;
            const u32 seen = __shfl_sync(full_warp, words[place / 32], place % 32 + 2 * (lane % 4));
@ if #mask.upper_at + #mask.lower_at > 0 then
            const int q = first_q + place + 2 * (lane % 4);
@ end
#pragma unroll
            for (int r = 0; r < 2; ++r)
                if (!(seen & bit[r])$(#mask.upper_at > 0 and " || q > q_max[r]" or "")$(#mask.lower_at > 0 and " || q < q_min[r]" or "")) s[m][i / 2][2 * r + i % 2] = NEG_INF;
        }
    }
}
