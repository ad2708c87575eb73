@ local fp16 = problem.dtype == "fp16" -- whose weights have room above and below
@ local scale = #score.terms > 0 and "score_scale(p)" or problem.kv_dtype == "e4m3" and "at.scale" or "p.scale_log2"
// Of the first tile's raw scores, seen or not: what the largest of a row would be at the row's own place among the keys, where most terms
// that go by place take least. Where rows are not like that their sums leave their range. What lies behind the last key is no score, and
// hidden already here.
__device__ __forceinline__ void estimate_maximum(float (&s)[m_atoms][s_atoms][4], float (&estimate)[m_atoms][2], int n, const Params &p,
                                                 const Where &at) {
    const int lane = lane_anew(), keys = at.seqlen_k - $(plan.score_key)(at, n);
    if (keys < $(plan.score_block)) {
#pragma unroll
        for (int i = 0; i < 2 * s_atoms; ++i)
            if (8 * (i / 2) + 2 * (lane % 4) + i % 2 >= keys)
#pragma unroll
                for (int m = 0; m < m_atoms; ++m) s[m][i / 2][i % 2] = s[m][i / 2][2 + i % 2] = NEG_INF;
    }
#pragma unroll
    for (int m = 0; m < m_atoms; ++m)
#pragma unroll
        for (int r = 0; r < 2; ++r) estimate[m][r] = row_maximum(s, m, r);
@ if #score.terms > 0 or fp16 then
#pragma unroll
    for (int m = 0; m < m_atoms; ++m)
#pragma unroll
        for (int r = 0; r < 2; ++r) {
            float most = estimate[m][r];
@ if #score.terms > 0 then
            const int row = opaque(at.q_first) + warp_row() + 16 * m + 8 * r + lane / 4;
            const int k = max(min($(problem.joins_heads and "row_query(p, row)" or "row") + at.diag, at.seqlen_k - 1), 0);
            most = score_at(most, row, k, p, at);
@ end
            estimate[m][r] = most$(fp16 and " - 4.0f * rcp(" .. scale .. ")" or "");
        }
@ end
}

__device__ __forceinline__ void take_estimate(float (&m_i)[m_atoms][2], const float (&estimate)[m_atoms][2], bool taken) {
#pragma unroll
    for (int m = 0; m < m_atoms; ++m)
#pragma unroll
        for (int r = 0; r < 2; ++r) m_i[m][r] = taken ? estimate[m][r] : m_i[m][r];
}
@ if few_keys == "bounds" then

// Whether the mask's bounds leave a row one key.
__device__ __forceinline__ void find_lone_keys(bool (&lone)[2], const Params &p, const Where &at) {
@   include("piece/mask_scalars.cu", { form = "", wants = function() return true end })
@   if mask.uses.q or mask.uses.h then
    const int first = opaque(at.q_first) + warp_row() + lane_anew() / 4;
@   end
    constexpr int m = 0;
#pragma unroll
    for (int r = 0; r < 2; ++r) {
@   include("piece/mask_row.cu", { own = "q" })
@   include("piece/row_bounds.cu")
        lone[r] = $(#mask.lower_at > 0 and "k_min" or "0") == k_max;
    }
}
@ elseif few_keys then

// What rounding takes from the weights of a row's only tile, in which it may see few keys; over many it evens out.
__device__ __forceinline__ void sum_lost(float (&lost)[2], const float (&s)[m_atoms][s_atoms][4]) {
#pragma unroll
    for (int n = 0; n < s_atoms; ++n)
#pragma unroll
        for (int r = 0; r < 2; ++r) {
            const float *pair = &s[0][n][2 * r];
            const u32 rounded = pack_$(problem.dtype)(pair[0], pair[1]);
            lost[r] += (pair[0] - lower_$(problem.dtype)(rounded)) + (pair[1] - upper_$(problem.dtype)(rounded));
        }
@   if problem.dropout and fp16 then -- a weight that is infinite as a half may be dropped, and then its row is right
#pragma unroll
    for (int r = 0; r < 2; ++r) lost[r] = lost[r] == NEG_INF ? 0.0f : lost[r];
@   end
}
@ end
