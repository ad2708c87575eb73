// Queries are multiplied by scale log2(e) before the products, so that a score is its weight's logarithm, and every row's reference is 0:
// of the softmax no more than the exponential and the sum are left. Weights of bf16 have a float's exponents. A row whose sum leaves its
// range is computed once more, `careful`, with the running maximum; so are rows that see no key, whose sums look like those of weights
// too small for a float.
constexpr float most_lse = 55.45f; // sums from 2^-80 to 2^80: of a million weights below 2^-126 that are lost 2^-26 is missing

// A block of Q, which is operand A, once more rounded.
__device__ __forceinline__ void scale_block(u32 (&a)[4], float scale_log2) {
#pragma unroll
    for (int e = 0; e < 4; ++e) a[e] = pack_bf16(lower_bf16(a[e]) * scale_log2, upper_bf16(a[e]) * scale_log2);
}
@ if not plan.q_in_regs then

// The warp's rows of a tile of queries, in their place. Products read those of the whole warpgroup.
__device__ __forceinline__ void scale_queries(u32 tile, float scale_log2) {
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int j = 0; j < d_pad / 16; ++j) {
        const u32 place = tile + fragment_offset<block_m, $(layout.d_cols)>(0, warp_row() + lane % 16, j, lane / 16);
        u32 block[4];
        ldmatrix_x4(block, place);
        scale_block(block, scale_log2);
        stmatrix_x4(place, block);
    }
    fence_proxy_async();
    named_barrier_sync(5 + threadIdx.x / 128, 128); // 1 to 4: turns
}
@ end

// l_i is the lane's own share of the row sum.
__device__ __forceinline__ void exponentiate(float (&s)[m_atoms][s_atoms][4], float (&l_i)[m_atoms][2]) {
#pragma unroll
    for (int r = 0; r < 2; ++r)
#pragma unroll
        for (int n = 0; n < s_atoms; ++n)
#pragma unroll
            for (int e = 2 * r; e < 2 * r + 2; ++e) {
                s[0][n][e] = ex2(s[0][n][e]);
                l_i[0][r] += s[0][n][e];
            }
}

// The first tile's, whose weights are summed as they are multiplied: a row that has seen one key then has its value, and few keys their
// mean. Elsewhere it would cost an instruction a score.
__device__ __forceinline__ void exponentiate_first(float (&s)[m_atoms][s_atoms][4], float (&l_i)[m_atoms][2]) {
#pragma unroll
    for (int n = 0; n < s_atoms; ++n)
#pragma unroll
        for (int r = 0; r < 2; ++r) {
            float *pair = &s[0][n][2 * r];
            pair[0] = ex2(pair[0]), pair[1] = ex2(pair[1]);
            const u32 rounded = pack_bf16(pair[0], pair[1]);
            l_i[0][r] += lower_bf16(rounded);
            l_i[0][r] += upper_bf16(rounded);
        }
}

// Scores of a careful tile, relative to the maximum; 0 is that of a row that has seen no key.
__device__ __forceinline__ void lower_scores(float (&s)[m_atoms][s_atoms][4], const float (&m_i)[m_atoms][2]) {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
        const float m = m_i[0][r] == NEG_INF ? 0.0f : m_i[0][r];
#pragma unroll
        for (int n = 0; n < s_atoms; ++n) s[0][n][2 * r] -= m, s[0][n][2 * r + 1] -= m;
    }
}

// Whether rows must be computed once more, by their lse, which refers to 0. That holds with sinks, too: beside one that keeps lse within
// its range weights below 2^-126 count as little.
__device__ __forceinline__ void find_strays(u32 (&spoiled)[2], const float (&lse)[m_atoms][2]) {
#pragma unroll
    for (int r = 0; r < 2; ++r) spoiled[r] = fabsf(lse[0][r]) <= most_lse ? 0 : 0x3c003c00; // which stays what it is where zeros are added
}
