@ if problem.dtype == "fp32" then
// Writes 16 M rows by 8 N columns (from atom col on) of a warp's accumulator, each row times its factor (index: row half), to
// the rows of a matrix in global memory that exist. A row's four lanes have 32 bytes of it, a whole sector.
template <int ROWS, int COLS, int COLS_IN_MEMORY, bool SHORT, int M, int N>
__device__ __forceinline__ void store_rows(const float (&acc)[M][N][4], const float (&factor)[M][2], u32, int row_0, int col,
                                           Element *out, i64 row_stride, int num_rows) {
    const int lane = lane_anew();
#pragma unroll
    for (int m = 0; m < M; ++m)
#pragma unroll
        for (int r = 0; r < 2; ++r) {
            const int row = row_0 + 16 * m + 8 * r + lane / 4;
            if (row >= num_rows) continue;
            float2 *to = reinterpret_cast<float2 *>(out + row * row_stride + col * 8) + lane % 4;
#pragma unroll
            for (int n = 0; n < N; ++n)
                if ((!SHORT && COLS == COLS_IN_MEMORY) || (col + n) * 8 < COLS_IN_MEMORY)
                    to[4 * n] = make_float2(acc[m][n][2 * r] * factor[m][r], acc[m][n][2 * r + 1] * factor[m][r]);
        }
}
@ else
// Writes 16 M rows by 8 N columns (from atom col on) of a warp's accumulator, each row times its factor (index: row half), to
// the rows of a matrix in global memory that exist. They pass through the warp's own part of a tile in shared memory, so that
// they leave in 16-byte pieces.
template <int ROWS, int COLS, int COLS_IN_MEMORY, bool SHORT, int M, int N>
__device__ __forceinline__ void store_rows(const float (&acc)[M][N][4], const float (&factor)[M][2], u32 tile, int row_0, int col,
                                           $(problem.op == "fwd" and "Output" or "Element") *out, i64 row_stride, int num_rows) {
    const int lane = lane_anew();
#pragma unroll
    for (int m = 0; m < M; ++m)
#pragma unroll
        for (int r = 0; r < 2; ++r)
#pragma unroll
            for (int n = 0; n < N; ++n)
                if (!SHORT || col + n < COLS / 8)
                    st_shared_u32(tile + tile_offset<ROWS, COLS>(row_0 + 16 * m + 8 * r + lane / 4, col + n) + lane % 4 * 4,
                                  pack_$(problem.output_dtype)(acc[m][n][2 * r] * factor[m][r], acc[m][n][2 * r + 1] * factor[m][r]));
    __syncwarp();
    constexpr int lanes = lanes_for(N), step = 32 / lanes;
    const int chunk = col + lane % lanes;
#pragma unroll
    for (int i = 0; i < 16 * M / step; ++i) {
        const int row = row_0 + i * step + lane / lanes;
        if (row < num_rows && lane % lanes < N && chunk * 8 < COLS_IN_MEMORY)
            st_global_v4(out + row * row_stride + chunk * 8, ld_shared_v4(tile + tile_offset<ROWS, COLS>(row, chunk)));
    }
}
@ end
