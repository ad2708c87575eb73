@ include("piece/fragment.cu")

// Tiles have panels of 64 columns: rows of 128 bytes, swizzled (TMA does it) as tile_offset says. A warpgroup's accumulator is, for
// each of its warps, one of 16 rows. All products are in flight until they are waited for.
template <int M, int N> __device__ __forceinline__ float (&registers(float (&acc)[M][N][4]))[4 * M * N] {
    return reinterpret_cast<float(&)[4 * M * N]>(acc);
}

// Descriptors count in 16 bytes. Step j of the depth, 16 columns of an operand that is read along its rows, or 16 rows of one that
// is read down its columns.
template <int ROWS> __device__ constexpr u64 step_along(int j) { return (j / 4 * (ROWS * 128) + j % 4 * 32) / 16; }
__device__ constexpr u64 step_down(int j) { return j * (16 * 128) / 16; }

__device__ __forceinline__ u64 along(u32 tile) { return wgmma_descriptor<128>(tile, 16, 1024); }
template <int ROWS> __device__ __forceinline__ u64 down(u32 tile) { return wgmma_descriptor<128>(tile, ROWS * 128, 1024); }

// acc = A B^T over COLS columns of tiles of A_ROWS and B_ROWS.
template <int A_ROWS, int B_ROWS, int COLS, int R>
__device__ __forceinline__ void gemm_nt(float (&acc)[R], u32 tile_a, u32 tile_b) {
    const u64 a = along(tile_a), b = along(tile_b);
    wgmma_fence();
#pragma unroll
    for (int j = 0; j < COLS / 16; ++j)
        wgmma_m64k16_$(problem.dtype)<0, 0>(acc, a + step_along<A_ROWS>(j), b + step_along<B_ROWS>(j), j > 0);
    wgmma_commit();
}
@ if layout.col_warps == 1 then

// acc += A B, where A is packed in registers and B is 16 K rows of a tile of ROWS.
template <int ROWS, int K, int N>
__device__ __forceinline__ void gemm_pn(float (&acc)[1][N][4], const u32 (&a)[K][4], u32 tile_b) {
    const u64 b = down<ROWS>(tile_b);
    wgmma_fence();
#pragma unroll
    for (int j = 0; j < K; ++j) wgmma_m64k16_$(problem.dtype)<1>(registers(acc), a[j], b + step_down(j), true);
    wgmma_commit();
}
@ else

// acc += A B; A: a tile of A_ROWS x ROWS.
template <int A_ROWS, int ROWS, int N>
__device__ __forceinline__ void gemm_nn(float (&acc)[1][N][4], u32 tile_a, u32 tile_b) {
    const u64 a = along(tile_a), b = down<ROWS>(tile_b);
    wgmma_fence();
#pragma unroll
    for (int j = 0; j < ROWS / 16; ++j)
        wgmma_m64k16_$(problem.dtype)<0, 1>(registers(acc), a + step_along<A_ROWS>(j), b + step_down(j), true);
    wgmma_commit();
}
@ end

// acc = A^T B; A and B: tiles of ROWS.
template <int ROWS, int N> __device__ __forceinline__ void gemm_tn(float (&acc)[1][N][4], u32 tile_a, u32 tile_b) {
    const u64 a = down<ROWS>(tile_a), b = down<ROWS>(tile_b);
    wgmma_fence();
#pragma unroll
    for (int j = 0; j < ROWS / 16; ++j)
        wgmma_m64k16_$(problem.dtype)<1, 1>(registers(acc), a + step_down(j), b + step_down(j), j > 0);
    wgmma_commit();
}
