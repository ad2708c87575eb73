// A warp owns rows_per_warp query rows: m_atoms atoms of 16. Lane = 4 g + t holds, in atom m, rows 16 m + g and + 8.
constexpr int rows_per_warp = $(plan.rows_per_warp);
constexpr int m_atoms = rows_per_warp / 16;
constexpr int s_atoms = block_n / 8; // atoms of 8 keys
constexpr int o_atoms = dv_pad / 8;  // atoms of 8 value columns

__device__ __forceinline__ void mma(float (&c)[4], const u32 (&a)[4], u32 b0, u32 b1) {
@ if arch.mma_k == 16 then
    mma_m16n8k16_$(problem.dtype)(c, a, b0, b1);
@ else
    mma_m16n8k8_$(problem.dtype)(c, a[0], a[1], b0);
    mma_m16n8k8_$(problem.dtype)(c, a[2], a[3], b1);
@ end
}

// Operand A: atom m of the warp's rows, 16 columns of Q, step j along the columns.
__device__ __forceinline__ void load_q(u32 (&a)[4], u32 tile, int m, int j) {
    const int lane = threadIdx.x % 32, row = threadIdx.x / 32 * rows_per_warp + lane % 16;
    ldmatrix_x4(a, tile + fragment_offset<block_m, d_pad>(16 * m, row, j, lane / 16));
}

// S = Q K^T for the warp's rows and one tile of keys.
@ if plan.q_in_regs then
__device__ __forceinline__ void qk_gemm(float (&s)[m_atoms][s_atoms][4], const u32 (&q)[m_atoms][d_pad / 16][4], u32 tile_k) {
@ else
__device__ __forceinline__ void qk_gemm(float (&s)[m_atoms][s_atoms][4], u32 tile_q, u32 tile_k) {
@ end
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int m = 0; m < m_atoms; ++m)
#pragma unroll
        for (int n = 0; n < s_atoms; ++n)
#pragma unroll
            for (int e = 0; e < 4; ++e) s[m][n][e] = 0.0f;
@ -- By whole panels: the steps differ in constants only, and the compiler does not fetch fragments too far ahead.
#pragma unroll $(layout.d_pad % 64 == 0 and 4 or layout.d_pad // 16)
    for (int j = 0; j < d_pad / 16; ++j) {
@ if not plan.q_in_regs then
        u32 a[m_atoms][4];
#pragma unroll
        for (int m = 0; m < m_atoms; ++m) load_q(a[m], tile_q, m, j);
@ end
#pragma unroll
        for (int n = 0; n < s_atoms; n += 2) {
            u32 b[4]; // 16 keys x 16 columns: two atoms of keys
            ldmatrix_x4(b, tile_k + fragment_offset<block_n, d_pad>(8 * n, lane % 8 + lane / 16 * 8, j, lane / 8 % 2));
#pragma unroll
            for (int m = 0; m < m_atoms; ++m) {
@ if plan.q_in_regs then
                mma(s[m][n], q[m][j], b[0], b[1]);
                mma(s[m][n + 1], q[m][j], b[2], b[3]);
@ else
                mma(s[m][n], a[m], b[0], b[1]);
                mma(s[m][n + 1], a[m], b[2], b[3]);
@ end
            }
        }
    }
}

// O += P V. The accumulator layout of P is the operand layout, so P never leaves the registers.
__device__ __forceinline__ void pv_gemm(float (&o)[m_atoms][o_atoms][4], const float (&p)[m_atoms][s_atoms][4], u32 tile_v) {
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int j = 0; j < block_n / 16; ++j) {
        u32 a[m_atoms][4];
#pragma unroll
        for (int m = 0; m < m_atoms; ++m)
#pragma unroll
            for (int e = 0; e < 4; ++e)
                a[m][e] = pack_$(problem.dtype)(p[m][2 * j + e / 2][e % 2 * 2], p[m][2 * j + e / 2][e % 2 * 2 + 1]);
#pragma unroll
        for (int n = 0; n < o_atoms; n += 2) {
            u32 b[4]; // 16 keys x 16 columns, transposed on the way
            ldmatrix_x4_trans(b, tile_v + fragment_offset<block_n, dv_pad>(16 * j, lane % 16, n / 2, lane / 16));
#pragma unroll
            for (int m = 0; m < m_atoms; ++m) {
                mma(o[m][n], a[m], b[0], b[1]);
                mma(o[m][n + 1], a[m], b[2], b[3]);
            }
        }
    }
}
