@ include("piece/row_statistics.cu")

// Rows of O and dO that are brought to the L2 cache before they are waited for: more would drive out what others are about to read.
constexpr int prefetched_rows = 320;

// A line a thread.
__device__ __forceinline__ void prefetch_rows(const Params &p, const Where &at, int which, int num_warps) {
    constexpr int lines = (head_dim_v * 2 + 127) / 128; // of a row, nearly
    const int h = opaque(at.h); // the addresses are not to be kept for the reads
    const Element *o = p.o + q_start(at, p.o_batch_stride, p.o_row_stride) + h * p.o_head_stride;
    const Element *dout = p.dout + q_start(at, p.dout_batch_stride, p.dout_row_stride) + h * p.dout_head_stride;
    for (int i = which * 32 + threadIdx.x % 32; i < at.seqlen_q * lines; i += num_warps * 32) {
        prefetch_l2(o + i / lines * p.o_row_stride + i % lines * 64);
        prefetch_l2(dout + i / lines * p.dout_row_stride + i % lines * 64);
    }
}

// Has the statistics of a head's rows ready, by warp `which` of `num_warps`. lse first, as a delta is waited for and lse would be again.
__device__ __forceinline__ void head_statistics(const Params &p, const Where &at, int which, int num_warps) {
    constexpr int rows = 32 / row_lanes, ahead = 2; // rows of a lane whose loads are on their way
    const int lane = threadIdx.x % 32, chunk = lane % row_lanes, step = rows * num_warps;
    const int padded = $(problem.packed and "(at.seqlen_q + block_m - 1) / block_m * block_m" or "p.q_padded");
    const i64 start = padded_start(p, at, at.h);
    const Element *o = p.o + q_start(at, p.o_batch_stride, p.o_row_stride) + at.h * p.o_head_stride + chunk * 8;
    const Element *dout = p.dout + q_start(at, p.dout_batch_stride, p.dout_row_stride) + at.h * p.dout_head_stride + chunk * 8;
    for (int q = which * 32 + lane; q < padded; q += num_warps * 32) p.lse_log2[start + q] = row_lse(p, at, at.h, q);
    for (int first = which * rows + lane / row_lanes; first - lane / row_lanes < padded; first += ahead * step) {
        uint4 of_o[ahead], of_dout[ahead];
#pragma unroll
        for (int i = 0; i < ahead; ++i) {
            const int q = first + i * step;
            of_o[i] = of_dout[i] = make_uint4(0, 0, 0, 0);
            if (q < at.seqlen_q && chunk < row_chunks) {
                of_o[i] = ld_global_v4(o + q * p.o_row_stride);
                of_dout[i] = ld_global_v4(dout + q * p.dout_row_stride);
            }
        }
#pragma unroll
        for (int i = 0; i < ahead; ++i) {
            const int q = first + i * step;
            const u32 x[4] = {of_o[i].x, of_o[i].y, of_o[i].z, of_o[i].w}, y[4] = {of_dout[i].x, of_dout[i].y, of_dout[i].z, of_dout[i].w};
            float delta = 0.0f;
#pragma unroll
            for (int j = 0; j < 4; ++j) {
                const float2 a = unpack_$(problem.dtype)(x[j]), b = unpack_$(problem.dtype)(y[j]);
                delta = fmaf(a.y, b.y, fmaf(a.x, b.x, delta));
            }
            delta = row_delta(p, at, at.h, q, delta);
            if (chunk == 0 && q < padded) p.delta[start + q] = delta;
        }
    }
    fence_proxy_async_global(); // they are copied
}

// A CTA's first head, by all of its warps, before they part.
__device__ __forceinline__ void first_statistics(const Params &p) {
    int kv_head;
    head_statistics(p, tile_at(p, blockIdx.x * p.group_tiles, kv_head), threadIdx.x / 32, threads / 32);
}

// Warps that have those of the next head ready, and its rows of dO on their way to L2, while the consumers are at one.
struct RowStatistics {
    const Params &p;
    const u32 smem;
    const int which; // of the warps

    __device__ __forceinline__ RowStatistics(const Params &p_, u32 smem_, int which_) : p(p_), smem(smem_), which(which_) {}

    __device__ __forceinline__ void run() const {
        HeadTiles tiles;
        u32 parity = 0;
        for (tiles.round = 1; tiles.head(p) < p.num_tiles; ++tiles.round, parity ^= 1) {
            int kv_head;
            mbarrier_wait(smem + rows_empty, parity);
            const Where at = tile_at(p, tiles.head(p), kv_head);
            if (at.seqlen_q <= prefetched_rows) prefetch_rows(p, at, which, row_warps);
            head_statistics(p, at, which, row_warps);
            __syncwarp();
            if (threadIdx.x % 32 == 0) mbarrier_arrive(smem + rows_full);
        }
    }
};
@ if problem.packed then

// Where all tiles of a sequence's heads are visited, and each of its tiles of keys begins and ends.
__device__ __forceinline__ int work_of(const Params &p, int b) {
    const Sequence at = sequence(p, b);
    return ((at.seqlen_q + block_m - 1) / block_m + 1) * tiles_of_head(p, at);
}

// Sequences by their heads' work, the most first, so that CTAs have alike shares of them. A warp finds the place of one.
extern "C" __global__ void __launch_bounds__(128) fk_backward_order(const __grid_constant__ Params p) {
    if (is_off(p)) return;
    const int b = blockIdx.x * 4 + threadIdx.x / 32;
    if (b >= p.batch) return;
    const int own = work_of(p, b);
    int before = 0;
    for (int other = threadIdx.x % 32; other < p.batch; other += 32) {
        const int work = work_of(p, other);
        before += work > own || (work == own && other < b);
    }
#pragma unroll
    for (int lane = 16; lane > 0; lane /= 2) before += __shfl_xor_sync(full_warp, before, lane);
    if (threadIdx.x % 32 == 0) p.order[before] = b;
}
@ end
