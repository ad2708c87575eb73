@ include("piece/fill.cu")

// Operand A: rows row + 16 m .. + 15 of a tile, columns 16 j .. + 15 (of 8 bits 32 j .. + 31, COLS counting pairs).
template <int ROWS, int COLS> __device__ __forceinline__ void load_a(u32 (&a)[4], u32 tile, int row, int m, int j) {
    const int lane = threadIdx.x % 32;
    ldmatrix_x4(a, tile + fragment_offset<ROWS, COLS>(16 * m, row + lane % 16, j, lane / 16));
}

// Block j of a row of accumulators, 16 x 16, as operand A: both have the same layout.
template <int K> __device__ __forceinline__ void pack_block(u32 (&a)[4], const float (&p)[K][4], int j) {
#pragma unroll
    for (int e = 0; e < 4; ++e)
        a[e] = pack_$(plan.operands == "e4m3" and problem.output_dtype or plan.operands)(p[2 * j + e / 2][e % 2 * 2], p[2 * j + e / 2][e % 2 * 2 + 1]);
}
