// A warp's accumulator: M atoms of 16 rows by N atoms of 8 columns. Lane = 4 g + t holds, in atom (m, n), rows 16 m + g and
// + 8, columns 8 n + 2 t and + 1.
template <int M, int N> __device__ __forceinline__ void fill(float (&acc)[M][N][4], float value) {
#pragma unroll
    for (int m = 0; m < M; ++m)
#pragma unroll
        for (int n = 0; n < N; ++n)
#pragma unroll
            for (int e = 0; e < 4; ++e) acc[m][n][e] = value;
}

// Operand A: rows row + 16 m .. + 15 of a tile, columns 16 j .. + 15 (of 8 bits 32 j .. + 31, COLS counting pairs).
template <int ROWS, int COLS> __device__ __forceinline__ void load_a(u32 (&a)[4], u32 tile, int row, int m, int j) {
    const int lane = threadIdx.x % 32;
    ldmatrix_x4(a, tile + fragment_offset<ROWS, COLS>(16 * m, row + lane % 16, j, lane / 16));
}

// Block j of a row of accumulators, 16 x 16, as operand A: both have the same layout.
template <int K> __device__ __forceinline__ void pack_block(u32 (&a)[4], const float (&p)[K][4], int j) {
#pragma unroll
    for (int e = 0; e < 4; ++e)
        a[e] = pack_$(problem.output_dtype)(p[2 * j + e / 2][e % 2 * 2], p[2 * j + e / 2][e % 2 * 2 + 1]);
}
