// Sends 16 rows of a tile, from row_0 on, which this warp has packed there, to rows `row` and on of a head's num_rows; TMA leaves out those
// that do not exist. The tile's COLS columns are those of memory from `col` on.
@ local packed, element = problem.packed, walk == "k" and "Output" or "Element"
template <int ROWS, int COLS, int COLS_IN_MEMORY>
__device__ __forceinline__ void send_rows(u32 tile, int row_0, const TensorMap &map, int row, int num_rows, int col, int head, $(packed and "int offset, " .. element .. " *out, i64 row_stride" or "int batch")) {
    fence_proxy_async();
    __syncwarp();
@ if packed then
    if (row + 16 > num_rows) { // the rows behind are another sequence's
        constexpr int chunks = (COLS < COLS_IN_MEMORY ? COLS : COLS_IN_MEMORY) / 8;
        for (int i = threadIdx.x % 32; i < 16 * chunks; i += 32) {
            const int chunk = i % chunks, i_row = i / chunks;
            if (row + i_row < num_rows && col + chunk * 8 < COLS_IN_MEMORY)
                st_global_v4(out + (row + i_row) * row_stride + col + chunk * 8, ld_shared_v4(tile + tile_offset<ROWS, COLS>(row_0 + i_row, chunk)));
        }
        return;
    }
@ end
    if (row < num_rows && elect_lane()) {
#pragma unroll
        for (int panel = 0; panel < COLS / 64; ++panel)
            if (col + 64 * panel < COLS_IN_MEMORY)
                tma_store_4d(&map, tile + panel * (ROWS * 128) + row_0 * 128, col + 64 * panel, row$(packed and " + offset" or ""), head, $(packed and "0" or "batch"));
        tma_store_commit();
    }
}
