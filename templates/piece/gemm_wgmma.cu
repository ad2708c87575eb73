@ include("piece/fragment.cu")

@ local depth = 32 // problem.element_bytes -- of an instruction
@ local product = ("wgmma_m64k%d_%s"):format(depth, problem.dtype)
@ local along = problem.dtype == "e4m3" -- neither operand can be read down its columns
// Tiles have panels of 128 bytes: rows of 128 bytes, swizzled (TMA does it) as tile_offset says. A warpgroup's accumulator is, for
// each of its warps, one of 16 rows.
template <int N> __device__ __forceinline__ float (&registers(float (&acc)[1][N][4]))[4 * N] {
    return reinterpret_cast<float(&)[4 * N]>(acc);
}

// Descriptors count in 16 bytes. Step j of the depth, 32 bytes, of an operand that is read along its rows.
template <int ROWS> __device__ constexpr u64 step_along(int j) { return (j / 4 * (ROWS * 128) + j % 4 * 32) / 16; }

// S = Q K^T, in flight until it is waited for.
@ if plan.q_in_regs then
__device__ __forceinline__ void gemm_qk(float (&s)[m_atoms][s_atoms][4], const u32 (&q)[d_pad / $(depth)][4], u32 tile_k) {
    const u64 k = wgmma_descriptor<128>(tile_k, 16, 1024);
    wgmma_fence();
#pragma unroll
    for (int j = 0; j < d_pad / $(depth); ++j)
        $(product)$(along and "" or "<0>")(registers(s), q[j], k + step_along<block_n>(j), j > 0);
    wgmma_commit();
}
@ else
__device__ __forceinline__ void gemm_qk(float (&s)[m_atoms][s_atoms][4], u32 tile_q, u32 tile_k) {
    const u64 q = wgmma_descriptor<128>(tile_q, 16, 1024), k = wgmma_descriptor<128>(tile_k, 16, 1024);
    wgmma_fence();
#pragma unroll
    for (int j = 0; j < d_pad / $(depth); ++j)
        $(product)$(along and "" or "<0, 0>")(registers(s), q + step_along<block_m>(j), k + step_along<block_n>(j), j > 0);
    wgmma_commit();
}
@ end

// The weights of a tile as operand A.
constexpr int p_steps = block_n / $(depth);

@ if along then
// O += P V, or without `accumulate` O = P V, in flight. Of V there are the columns, as rows of keys.
__device__ __forceinline__ void gemm_pv(float (&o)[m_atoms][o_atoms][4], const u32 (&weights)[p_steps][4], u32 tile_v, bool accumulate) {
    const u64 v = wgmma_descriptor<128>(tile_v, 16, 1024);
    wgmma_fence();
#pragma unroll
    for (int j = 0; j < p_steps; ++j)
        $(product)(registers(o), weights[j], v + step_along<dv_pad>(j), accumulate || j > 0);
@ else
// O += P V, or without `accumulate` O = P V, in flight. V is read down its columns: a step of 16 keys is 16 rows.
__device__ __forceinline__ void gemm_pv(float (&o)[m_atoms][o_atoms][4], const u32 (&weights)[p_steps][4], u32 tile_v, bool accumulate) {
    const u64 v = wgmma_descriptor<128>(tile_v, block_n * 128, 1024);
    wgmma_fence();
#pragma unroll
    for (int j = 0; j < p_steps; ++j)
        $(product)<1>(registers(o), weights[j], v + j * (16 * 128 / 16), accumulate || j > 0);
@ end
    wgmma_commit();
}
