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

// Bytes from a row to the next, in the panel that holds the chunk.
template <int COLS> __device__ __forceinline__ u32 tile_pitch(int chunk) {
    constexpr int chunks = COLS / chunk_elements;
    return chunk < chunks / 8 * 8 ? 128 : chunks % 8 >= 4 && chunk < chunks / 4 * 4 ? 64 : 32;
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

@ -- Without asynchronous copies a tile waits in registers between issue and land, under the products of the tile before; in
@ -- backward, where the accumulators leave no room for it, it goes straight on.
@ local staged = not arch.async_copy and problem.op == "fwd"
// Copies tiles of a matrix in global memory. The threads share a row in groups of the least power of two that covers its
// 16-byte chunks; each keeps the address of its own first chunk, which moves with the tile.
template <int ROWS, int COLS, int COLS_IN_MEMORY, int THREADS = threads> struct TileCopy {
    static constexpr int lanes = lanes_for(COLS / chunk_elements);
    static constexpr int step = THREADS / lanes; // rows that all threads copy at a time
    static constexpr int passes = (ROWS + step - 1) / step;
    static constexpr int period = step < 8 ? 8 / step : 1; // passes after which the swizzle repeats
    const Element *src;
    i64 row_stride;

    // Where in a tile this thread's passes go.
    struct Destination {
        u32 first[period], pitch;
        __device__ __forceinline__ Destination(u32 tile) {
            const int chunk = threadIdx.x % lanes, row = threadIdx.x / lanes;
#pragma unroll
            for (int i = 0; i < period; ++i) first[i] = tile + tile_offset<ROWS, COLS>(row + i * step, chunk);
            pitch = COLS / chunk_elements % 8 == 0 ? 128 : opaque(tile_pitch<COLS>(chunk));
        }
        __device__ __forceinline__ u32 pass(int i) const { return first[i % period] + i / period * (period * step) * pitch; }
    };
@ if staged then
    uint4 staged[passes]; // no asynchronous copy here: the tile waits in registers between issue and land
@ end

    __device__ __forceinline__ TileCopy(const Element *matrix, i64 row_stride_) : row_stride(row_stride_) {
        src = matrix + threadIdx.x / lanes * row_stride + threadIdx.x % lanes * chunk_elements;
    }

    __device__ __forceinline__ void move(int rows) { src += rows * row_stride; }
    __device__ __forceinline__ void seek(const Element *matrix, int row) { src = TileCopy(matrix + row * row_stride, row_stride).src; }

    // Starts the copy; rows from num_rows on and padding columns become zero. WHOLE: the caller knows that all rows exist.
    template <bool WHOLE> __device__ __forceinline__ void issue(u32 tile, int num_rows) {
        const int chunk = threadIdx.x % lanes, row_0 = threadIdx.x / lanes;
        const i64 pass_stride = opaque(step * row_stride);
        const bool in_memory = COLS == COLS_IN_MEMORY || chunk * chunk_elements < COLS_IN_MEMORY;
        const Destination to(tile);
        const Element *from = src;
        if (has_chunk()) {
#pragma unroll
            for (int i = 0; i < passes; ++i) {
                const int row = row_0 + i * step;
                const bool valid = in_memory && (WHOLE || row < num_rows);
@ if arch.async_copy then
                if (has_row(row)) cp_async_16(to.pass(i), from, valid);
@ elseif staged then
                staged[i] = valid && has_row(row) ? ld_global_v4(from) : make_uint4(0, 0, 0, 0);
@ else
                if (has_row(row)) st_shared_v4(to.pass(i), valid ? ld_global_v4(from) : make_uint4(0, 0, 0, 0));
@ end
                from += pass_stride;
            }
        }
@ if arch.async_copy then
        cp_async_commit();
@ end
    }

    // After land and a barrier the tile is there for every thread. IN_FLIGHT: copies issued later that may still run.
    template <int IN_FLIGHT = 0> __device__ __forceinline__ void land(u32 tile) {
@ if arch.async_copy then
        cp_async_wait<IN_FLIGHT>();
@ elseif staged then
        if (!has_chunk()) return;
        const Destination to(tile);
#pragma unroll
        for (int i = 0; i < passes; ++i) {
            if (has_row(threadIdx.x / lanes + i * step)) st_shared_v4(to.pass(i), staged[i]);
        }
@ end
    }

    // Where the lanes do not fit a row, or the threads the tile, some have nothing to copy.
    static __device__ __forceinline__ bool has_chunk() { return lanes * chunk_elements == COLS || threadIdx.x % lanes * chunk_elements < COLS; }
    static __device__ __forceinline__ bool has_row(int row) { return ROWS % step == 0 || row < ROWS; }
};
