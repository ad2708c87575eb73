// The steps of one pair of query tile and key tile where a warp owns rows of queries: dS is the operand of dQ straight from the
// registers, and the statistics of the warp's rows stay there. Second index: row half, 0 for g, 1 for g + 8.

// Of the tile's rows; `none` for those past the end.
__device__ __forceinline__ void load_rows(float (&x)[m_atoms][2], const float *rows, int num_rows, float none) {
#pragma unroll
    for (int m = 0; m < m_atoms; ++m)
#pragma unroll
        for (int r = 0; r < 2; ++r) {
            const int row = warp_row() + 16 * m + 8 * r + threadIdx.x % 32 / 4;
            x[m][r] = row < num_rows ? rows[row] : none;
        }
}

@ local fp32 = problem.dtype == "fp32"
@ if fp32 then
// S -> P.
__device__ __forceinline__ void probabilities(float (&s)[m_atoms][s_atoms][4], $(#score.terms == 0 and "const float (&low)[m_atoms][s_atoms][4], " or "")const float (&lse)[m_atoms][2], $(#score.terms == 0 and "float scale, " or "")float factor) {
@ else
// S -> P = 2^(scale_log2 s - lse_log2). A query without keys has lse_log2 = +inf, hence p = 0.
__device__ __forceinline__ void probabilities(float (&s)[m_atoms][s_atoms][4], const float (&lse)[m_atoms][2], float scale_log2) {
@ end
#pragma unroll
    for (int m = 0; m < m_atoms; ++m)
#pragma unroll
        for (int n = 0; n < s_atoms; ++n)
#pragma unroll
            for (int e = 0; e < 4; ++e) s[m][n][e] = $(fp32 and "probability(s[m][n][e], " .. (#score.terms == 0 and "low[m][n][e], scale, " or "") .. "lse[m][e / 2], factor)" or "ex2(fmaf(s[m][n][e], scale_log2, -lse[m][e / 2]))");
}

// dP starts from -delta, so that dS = P * (dP - delta) is one product.
__device__ __forceinline__ void fill_minus_delta(float (&dp)[m_atoms][s_atoms][4], const float (&delta)[m_atoms][2]) {
#pragma unroll
    for (int m = 0; m < m_atoms; ++m)
#pragma unroll
        for (int n = 0; n < s_atoms; ++n)
#pragma unroll
            for (int e = 0; e < 4; ++e) dp[m][n][e] = -delta[m][e / 2];
}

@ if problem.dropout then
// dP - delta -> (dP where the element is kept, else 0) - delta.
__device__ __forceinline__ void drop_gradients(float (&dp)[m_atoms][s_atoms][4], const float (&delta)[m_atoms][2],
                                               const Dropout<false> &dropout) {
#pragma unroll
    for (int m = 0; m < m_atoms; ++m)
#pragma unroll
        for (int j = 0; j < s_atoms / 2; ++j) {
            u32 w[2];
            dropout.signs(w, m, j);
#pragma unroll
            for (int i = 0; i < 8; ++i) {
                float &x = dp[m][2 * j + i / 4][i % 4];
                x = dropout.select(w, i / 4, i % 4, x, -delta[m][i % 4 / 2]);
            }
        }
}

@ end
// dS = P * dP, in place of dP.
__device__ __forceinline__ void score_gradients(float (&dp)[m_atoms][s_atoms][4], const float (&p)[m_atoms][s_atoms][4]) {
#pragma unroll
    for (int m = 0; m < m_atoms; ++m)
#pragma unroll
        for (int n = 0; n < s_atoms; ++n)
#pragma unroll
            for (int e = 0; e < 4; ++e) dp[m][n][e] *= p[m][n][e];
}
