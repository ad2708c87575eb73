@ -- Without asynchronous copies, or with elements that become operands of 16 bits, or their parts, on the way, a tile waits in registers between issue and
@ -- land, under the products of the tile before; in backward, where the accumulators leave no room for it, it goes straight on.
@ -- Forward, floats become parts on their way; backward they are copied as they are, and part_tile makes parts of them.
@ local parted = plan.parted and problem.op == "fwd"
@ local async = arch.async_copy and not widens and not parted
@ local staged = not async and problem.op == "fwd"
@ local load = widens and "ld_global_pair" or "ld_global_v4"
@ local none = widens and "make_uint2(0, 0)" or "make_uint4(0, 0, 0, 0)"
@ if widens then
// Eight elements as operands.
__device__ __forceinline__ uint4 widened(uint2 v) {
    const uint2 low = unpack_e4m3_$(plan.operands)(v.x), high = unpack_e4m3_$(plan.operands)(v.y);
    return make_uint4(low.x, low.y, high.x, high.y);
}

@ end
// Copies tiles of a matrix in global memory. The threads share a row in groups of the least power of two that covers its
// 16-byte chunks; each keeps the address of its own first chunk, which moves with the tile.
template <int ROWS, int COLS, int COLS_IN_MEMORY, int THREADS = threads> struct $(copy) {
    static constexpr int lanes = lanes_for(COLS / chunk_elements);
    static constexpr int step = THREADS / lanes; // rows that all threads copy at a time
    static constexpr int passes = (ROWS + step - 1) / step;
    static constexpr int period = step < 8 ? 8 / step : 1; // passes after which the swizzle repeats
    const $(element) *src;
    i64 row_stride;

    // Where in a tile this thread's passes go.
    struct Destination {
        u32 first[period], pitch;
        __device__ __forceinline__ Destination(u32 tile) {
            const int chunk = threadIdx.x % lanes, row = threadIdx.x / lanes;
#pragma unroll
@ if parted then
            for (int i = 0; i < period; ++i) first[i] = tile + tile_offset<ROWS, COLS / 2>(row + i * step, chunk / 2) + chunk % 2 * 8;
            pitch = COLS / chunk_elements % 16 == 0 ? 128 : opaque(tile_pitch<COLS / 2>(chunk / 2));
@ else
            for (int i = 0; i < period; ++i) first[i] = tile + tile_offset<ROWS, COLS>(row + i * step, chunk);
            pitch = COLS / chunk_elements % 8 == 0 ? 128 : opaque(tile_pitch<COLS>(chunk));
@ end
        }
        __device__ __forceinline__ u32 pass(int i) const { return first[i % period] + i / period * (period * step) * pitch; }
    };
@ if staged then
    $(widens and "uint2" or "uint4") staged[passes]; // no asynchronous copy here: the tile waits in registers between issue and land
@ end

    __device__ __forceinline__ $(copy)(const $(element) *matrix, i64 row_stride_) : row_stride(row_stride_) {
        src = matrix + threadIdx.x / lanes * row_stride + threadIdx.x % lanes * chunk_elements;
    }

    __device__ __forceinline__ void move(int rows) { src += rows * row_stride; }
    __device__ __forceinline__ void seek(const $(element) *matrix, int row) { src = $(copy)(matrix + row * row_stride, row_stride).src; }

    // Starts the copy$(widens and ", of 8 bytes a thread and row" or ""); rows from num_rows on and padding columns become zero. WHOLE: the caller knows that all rows exist.
    template <bool WHOLE> __device__ __forceinline__ void issue(u32 tile, int num_rows) {
        const int chunk = threadIdx.x % lanes, row_0 = threadIdx.x / lanes;
        const i64 pass_stride = opaque(step * row_stride);
        const bool in_memory = COLS == COLS_IN_MEMORY || chunk * chunk_elements < COLS_IN_MEMORY;
        const Destination to(tile);
        const $(element) *from = src;
        if (has_chunk()) {
#pragma unroll
            for (int i = 0; i < passes; ++i) {
                const int row = row_0 + i * step;
                const bool valid = in_memory && (WHOLE || row < num_rows);
@ if async then
                if (has_row(row)) cp_async_16(to.pass(i), from, valid);
@ elseif staged then
                staged[i] = valid && has_row(row) ? $(load)(from) : $(none);
@ else
                if (has_row(row)) st_shared_v4(to.pass(i), valid ? ld_global_v4(from) : make_uint4(0, 0, 0, 0));
@ end
                from += pass_stride;
            }
        }
@ if async then
        cp_async_commit();
@ end
    }

    // After land and a barrier the tile is there for every thread. IN_FLIGHT: copies issued later that may still run.
    template <int IN_FLIGHT = 0> __device__ __forceinline__ void land(u32 tile) {
@ if async then
        cp_async_wait<IN_FLIGHT>();
@ elseif staged then
        if (!has_chunk()) return;
        const Destination to(tile);
#pragma unroll
        for (int i = 0; i < passes; ++i) {
@   if parted then
            if (has_row(threadIdx.x / lanes + i * step)) store_parts<ROWS, COLS>(to.pass(i), staged[i]);
@   else
            if (has_row(threadIdx.x / lanes + i * step)) st_shared_v4(to.pass(i), $(widens and "widened(staged[i])" or "staged[i]"));
@   end
        }
@ end
    }

    // Where the lanes do not fit a row, or the threads the tile, some have nothing to copy.
    static __device__ __forceinline__ bool has_chunk() { return lanes * chunk_elements == COLS || threadIdx.x % lanes * chunk_elements < COLS; }
    static __device__ __forceinline__ bool has_row(int row) { return ROWS % step == 0 || row < ROWS; }
};
