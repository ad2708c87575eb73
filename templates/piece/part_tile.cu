// A tile of floats becomes three of bf16, one of each part (piece/float_parts.cu): once, and not by each warp that reads it. Each thread
// takes what it has copied itself, for which it need not wait for others.
template <int ROWS, int COLS> __device__ __forceinline__ void part_tile(u32 parts, u32 floats) {
    using Copy = TileCopy<ROWS, COLS, COLS>;
    if (!Copy::has_chunk()) return;
    const typename Copy::Destination from(floats);
    const int chunk = threadIdx.x % Copy::lanes, row_0 = threadIdx.x / Copy::lanes;
#pragma unroll
    for (int i = 0; i < Copy::passes; ++i) {
        const int row = row_0 + i * Copy::step;
        if (!Copy::has_row(row)) continue;
        store_parts<ROWS, COLS>(parts + tile_offset<ROWS, COLS / 2>(row, chunk / 2) + chunk % 2 * 8, ld_shared_v4(from.pass(i)));
    }
}
