@ include("piece/fragment.cu")

// Tiles have panels of 128 bytes: rows of 128 bytes, swizzled (TMA does it) as tile_offset says. A warpgroup's accumulator is, for
// each of its warps, one of 16 rows.
template <int N> __device__ __forceinline__ float (&registers(float (&acc)[1][N][4]))[4 * N] {
    return reinterpret_cast<float(&)[4 * N]>(acc);
}

@ local depth = 32 // problem.element_bytes -- of an instruction
@ local product_qk, product_pv = "wgmma_m64k" .. layout.d_pad .. "_" .. problem.dtype, "wgmma_m64k" .. plan.block_n .. "_" .. problem.dtype
// Tiles of K and V are known by the low words of their descriptors.
__device__ __forceinline__ u32 operand_k(u32 tile) { return wgmma_word(tile, 16); }
__device__ __forceinline__ u32 operand_v(u32 tile) { return wgmma_word(tile, $(problem.dtype == "e4m3" and "16" or "block_n * 128")); }

@ local sums = plan.halved and "block_n / 8" or "s_atoms" -- of all keys of a tile
@ local line = layout.line_bytes > 0 and { ", u64 slopes, u64 keys", ", slopes, keys" } or { "", "" }
// S = Q K^T$(layout.line_bytes > 0 and " and what is added along the keys" or ""), in flight until it is waited for.
@ if plan.q_in_regs then
__device__ __forceinline__ void gemm_qk(float (&s)[m_atoms][$(sums)][4], const u32 (&q)[d_pad / $(depth)][4], u32 k$(line[1])) {
    $(product_qk)<block_n>(registers(s), q, wgmma_descriptor<128>(k, 1024)$(line[2]));
}
@ else
__device__ __forceinline__ void gemm_qk(float (&s)[m_atoms][$(sums)][4], u32 tile_q, u32 k$(line[1])) {
    $(product_qk)<block_m, block_n>(registers(s), wgmma_descriptor<128>(tile_q, 16, 1024), wgmma_descriptor<128>(k, 1024)$(line[2]));
}
@ end

// The weights of a tile as operand A.
constexpr int p_steps = block_n / $(depth);

// O += P V, or without `accumulate` O = P V, in flight. $(problem.dtype == "e4m3" and "The tile has V's columns as rows of keys" .. (problem.fast and layout.o_cols > layout.dv_pad and ", and rows of ones." or ".") or "V is read down its columns.")
__device__ __forceinline__ void gemm_pv(float (&o)[m_atoms][o_atoms][4], const u32 (&weights)[p_steps][4], u32 v, bool accumulate) {
@ if problem.dtype == "e4m3" then
    $(product_pv)<$(layout.o_cols)>(registers(o), weights, wgmma_descriptor<128>(v, 1024), accumulate);
@ else
    $(product_pv)<0>(registers(o), weights, wgmma_descriptor<128>(v, 1024), accumulate);
@ end
}
