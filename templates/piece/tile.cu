// A tile of ROWS x COLS elements in shared memory: panels of 8 chunks of 16 bytes (64 columns; of fp32 32), then one of 4 and one
// of 2 where COLS has them. A panel's rows lie one after another; within a row the chunks are XOR-ed with the row, so that the
// eight rows of an 8x8 matrix fall into different banks.
template <int ROWS, int COLS> __device__ __forceinline__ u32 tile_offset(int row, int chunk) {
    constexpr int chunks = COLS / chunk_elements, wide = chunks / 8 * 8; // wide: in panels of 8
    if (chunks % 8 == 0 || chunk < wide) return (chunk / 8) * (ROWS * 128) + row * 128 + (((chunk ^ row) & 7) << 4);
    if (chunks % 8 >= 4 && (chunks % 4 == 0 || chunk < wide + 4))
        return ROWS * wide * 16 + row * 64 + (((chunk ^ (row >> 1)) & 3) << 4);
    constexpr int narrow = chunks / 4 * 4; // before the panel of 2
    return ROWS * narrow * 16 + row * 32 + (((chunk ^ (row >> 2)) & 1) << 4);
}

// As tile_offset, for chunk 2 j + half of row row_0 + lane_row, where row_0 (a multiple of 8) and j are known at compile time: what
// depends on the lane does not depend on row_0, and on j only through an XOR of the address.
template <int ROWS, int COLS> __device__ __forceinline__ u32 fragment_offset(int row_0, int lane_row, int j, int half) {
    constexpr int chunks = COLS / chunk_elements;
    if (chunks % 8 == 0 || j < chunks / 8 * 4)
        return j / 4 * (ROWS * 128) + row_0 * 128 + ((lane_row * 128 + (((half ^ lane_row) & 7) << 4)) ^ (j % 4 << 5));
    if (chunks % 4 == 0 || j < chunks / 4 * 2)
        return ROWS * (chunks / 8 * 128) + row_0 * 64 + ((lane_row * 64 + (((half ^ (lane_row >> 1)) & 3) << 4)) ^ (j % 2 << 5));
    return ROWS * (chunks / 4 * 64) + row_0 * 32 + lane_row * 32 + (((half ^ (lane_row >> 2)) & 1) << 4);
}

@ if problem.op == "bwd" then
// As tile_offset, for chunk first + n of row row_0 + lane_row, where row_0 (a multiple of 8) and n < N are known at compile time,
// N is a power of two and first a multiple of it; a row has 2 or 4 chunks or a multiple of 8.
template <int ROWS, int COLS, int N> __device__ __forceinline__ u32 chunk_offset(int row_0, int lane_row, int first, int n) {
    constexpr int chunks = COLS / chunk_elements < 8 ? COLS / chunk_elements : 8, pitch = chunks * 16; // of a panel
    const int swizzle = (chunks == 2 ? lane_row >> 2 : chunks == 4 ? lane_row >> 1 : lane_row) & (chunks - 1);
    const u32 base = first / chunks * (ROWS * pitch) + lane_row * pitch + ((first % chunks ^ swizzle) << 4);
    return (base ^ (n % chunks << 4)) + n / chunks * (ROWS * pitch) + row_0 * pitch;
}

@ end
__device__ constexpr int lanes_for(int chunks) { return chunks <= 2 ? 2 : 2 * lanes_for((chunks + 1) / 2); }

// Bytes from a row to the next, in the panel that holds the chunk.
template <int COLS> __device__ __forceinline__ u32 tile_pitch(int chunk) {
    constexpr int chunks = COLS / chunk_elements;
    return chunk < chunks / 8 * 8 ? 128 : chunks % 8 >= 4 && chunk < chunks / 4 * 4 ? 64 : 32;
}
