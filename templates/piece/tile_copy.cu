// Bytes from a row to the next, in the panel that holds the chunk.
template <int COLS> __device__ __forceinline__ u32 tile_pitch(int chunk) {
    constexpr int chunks = COLS / chunk_elements;
    return chunk < chunks / 8 * 8 ? 128 : chunks % 8 >= 4 && chunk < chunks / 4 * 4 ? 64 : 32;
}

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
