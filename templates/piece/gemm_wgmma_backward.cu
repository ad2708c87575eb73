@ include("piece/fragment.cu")

// Tiles have panels of 64 columns: rows of 128 bytes, swizzled (TMA does it) as tile_offset says. A warpgroup's accumulator is, for
// each of its warps, one of 16 rows. All products are in flight until they are waited for.
template <int M, int N> __device__ __forceinline__ float (&registers(float (&acc)[M][N][4]))[4 * M * N] {
    return reinterpret_cast<float(&)[4 * M * N]>(acc);
}

// Operands that are read along the rows of a tile, and down the columns of one of ROWS.
__device__ __forceinline__ u64 along(u32 tile) { return wgmma_descriptor<128>(tile, 16, 1024); }
template <int ROWS> __device__ __forceinline__ u64 down(u32 tile) { return wgmma_descriptor<128>(tile, ROWS * 128, 1024); }

@ local function product(depth) return "wgmma_m64k" .. depth .. "_" .. problem.dtype end
// S^T = K Q^T and dP^T = V dO^T. K and V stay while a row is walked: of the first steps of their columns a warp has them in registers.
@ for _, g in ipairs { { name = "s", a = "k", b = "q", depth = layout.d_depth, held = layout.held_k }, { name = "dp", a = "v", b = "dout", depth = layout.dv_depth, held = layout.held_v } } do
@   local some, all = g.held > 0, g.held == g.depth // 16
template <int R> __device__ __forceinline__ void gemm_$(g.name)(float (&$(g.name))[R], $(some and ("const u32 (&held)[%d][4], "):format(g.held) or "")u32 tile_$(g.a), u32 tile_$(g.b)) {
    $(product(g.depth))<$(all and "" or "own_n, ")block_m>($(g.name), $(some and "held, " or "")$(all and "" or "along(tile_" .. g.a .. "), ")along(tile_$(g.b)));
}
@ end

// dV += P^T dO or dK += dS^T Q, of part_m queries.
@ if layout.col_warps == 1 then
template <int N> __device__ __forceinline__ void gemm_dkv(float (&acc)[1][N][4], const u32 (&weights)[part_m / 16][4], u32 tile) {
    $(product(64))<0>(registers(acc), weights, down<block_m>(tile), true);
}
@ else
template <int N> __device__ __forceinline__ void gemm_dkv(float (&acc)[1][N][4], u32 weights, u32 tile) {
    $(product(64))<own_n, 0>(registers(acc), along(weights), down<block_m>(tile), true);
}
@ end

// dQ = dS K, where dS lies [key][query].
template <int N> __device__ __forceinline__ void gemm_dq(float (&dq)[1][N][4], u32 tile_ds, u32 tile_k) {
    $(product(layout.own_n))<0, 0>(registers(dq), down<own_n>(tile_ds), down<own_n>(tile_k));
}
@ if plan.cluster > 1 and not plan.halved then
// The same, added to it.
template <int N> __device__ __forceinline__ void gemm_dq_more(float (&dq)[1][N][4], u32 tile_ds, u32 tile_k) {
    $(product(layout.own_n))<0, 0>(registers(dq), down<own_n>(tile_ds), down<own_n>(tile_k), true);
}
@ end
