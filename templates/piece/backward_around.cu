// ---- before$(plan.dq_kernel and ": row statistics" or " and after: row statistics, and dQ from its fp32 sum") ----

@ local stored = plan.adders and plan.q_stages > 0 -- the first to add to a sum of dQ stores it
@ local clears = not plan.dq_kernel and not stored
@ local early = plan.family == "mma" and arch.early_start
@ local counted = early and not plan.dq_kernel and not problem.packed -- dq's kernel need not wait for the last heads
// The sequence and the query head that a row kernel works on; b = -1: none.
@ if problem.packed then
// Of the tiles of all sequences; becomes the tile of its sequence.
@ end
__device__ __forceinline__ Sequence this_head(const Params &p, $(problem.packed and "int &tile, " or "")int &h$(counted and ", bool last_first" or "")) {
@ if counted then
    // The main kernel begins with the first heads, whose sums of dQ are in L2 if they were cleared last, and is done with them first.
    const int place = blockIdx.y + gridDim.y * blockIdx.z, head = last_first ? gridDim.y * gridDim.z - 1 - place : place;
@ else
    // The main kernel ends with the last heads, whose sums of dQ are then in L2, and begins with the first.
    const int head = gridDim.y * gridDim.z - 1 - (blockIdx.y + gridDim.y * blockIdx.z);
@ end
    Sequence at;
    at.b = -1;
@ if problem.packed then
    h = head;
    if (h >= p.num_heads_q) return at;
    const int b = find_sequence<block_m>(p.cu_seqlens_q, p.batch, tile);
    at = sequence(p, b);
    if (tile < 0 || tile * block_m >= at.seqlen_q) at.b = -1;
    return at;
@ else
    const int b = quotient(head, p.num_heads_q, p.heads_inverse);
    if (b >= p.batch) return at;
    h = head - b * p.num_heads_q;
    return sequence(p, b);
@ end
}

@ local fp32 = problem.dtype == "fp32"
@ include("piece/row_statistics.cu")

// The statistics of 16 rows$(clears and ", and clears the rows' sums of dQ" or "").
extern "C" __global__ void __launch_bounds__(128) fk_backward_delta(const __grid_constant__ Params p) {
    if (is_off(p)) return;
@ if plan.family == "wgmma" then
    if (threadIdx.x + blockIdx.x + blockIdx.y + blockIdx.z == 0) *p.claims = 0; // before the kernel that counts
@ end
@ if arch.early_start then
    start_next();
@ end
    constexpr int step = 128 / row_lanes;
    const int chunk = threadIdx.x % row_lanes;
    int h;
@ if problem.packed then
    int tile = blockIdx.x / (block_m / 16);
    const Sequence at = this_head(p, tile, h);
    const int first = tile * block_m + blockIdx.x % (block_m / 16) * 16;
@ else
    const Sequence at = this_head(p, h$(counted and ", true" or ""));
    const int first = blockIdx.x * 16;
@ end
    if (at.b < 0) return;
    const i64 row = padded_start(p, at, h) + first;
@ if plan.adders then
    if (threadIdx.x < $(plan.cluster) && first % block_m == 0) p.added[$(plan.cluster > 1 and "2 * (row / block_m) + threadIdx.x" or "row / block_m")] = 0;
@ end
@ if counted then
    if (threadIdx.x == 0 && first == 0) p.claims[at.b * p.num_heads_kv + h / p.heads_per_kv] = 0;
@ end
@ if clears then
    for (int i = threadIdx.x; i < 16 * d_pad / 4; i += 128) st_global_v4(p.dq_acc + row * d_pad + i * 4, make_uint4(0, 0, 0, 0));
@ end
    const Element *o_row = p.o + q_start(at, p.o_batch_stride, p.o_row_stride) + h * p.o_head_stride + chunk * 8;
    const Element *dout_row = p.dout + q_start(at, p.dout_batch_stride, p.dout_row_stride) + h * p.dout_head_stride + chunk * 8;
#pragma unroll
    for (int r = 0; r < 16; r += step) {
        const int own = r + threadIdx.x / row_lanes, q = first + own;
        float delta = 0.0f$(fp32 and ", low = 0.0f" or "");
@ local wide = problem.head_dim_v > 256 -- each lane has more than one
        $(wide and "for (int at_chunk = chunk; q < at.seqlen_q && at_chunk < row_chunks; at_chunk += row_lanes)" or "if (q < at.seqlen_q && chunk < row_chunks)") {
            float o[8], dout[8];
@ if wide then
            load_elements(o, o_row + q * p.o_row_stride + (at_chunk - chunk) * 8);
            load_elements(dout, dout_row + q * p.dout_row_stride + (at_chunk - chunk) * 8);
@ else
            load_elements(o, o_row + q * p.o_row_stride);
            load_elements(dout, dout_row + q * p.dout_row_stride);
@ end
#pragma unroll
@ if fp32 then
            for (int i = 0; i < 8; ++i) {
                const float product = __fmul_rn(o[i], dout[i]);
                low += fmaf(o[i], dout[i], -product);
                add_exactly(delta, low, product);
            }
@ else
            for (int i = 0; i < 8; ++i) delta = fmaf(o[i], dout[i], delta);
@ end
        }
        delta = row_delta(p, at, h, q, delta$(fp32 and ", low" or ""));
        if (chunk != 0) continue;
        p.delta[row + own] = delta;
        p.lse_log2[row + own] = row_lse(p, at, h, q);
    }
}
@ if not plan.dq_kernel then

// dQ = scale * sum, of 8 elements in each of two rows: part i of the head's atoms of 16 rows x 8 columns, which have 8 parts each.
__device__ __forceinline__ void store_dq(const Params &p, const Sequence &at, int h, int i) {
    constexpr int chunks = head_dim / 8;
    const int rows_16 = i / (8 * chunks), chunk = i % (8 * chunks) / 8, g = i % 8, first = 16 * rows_16 + g;
    if (first >= at.seqlen_q) return;
    const i64 start = padded_start(p, at, h);
    const float *sum = p.dq_acc + (start + 16 * i64(rows_16)) * d_pad + dq_atom(0, chunk);
    float dq[2][8];
@ if stored then
    const float scale = p.added[start / block_m + rows_16 / (block_m / 16)] ? p.scale : 0.0f; // 0: no sum is there
@ end
#pragma unroll
    for (int t = 0; t < 4; ++t) {
@ if arch.vector_add then
        const uint4 x = $(stored and "scale == 0.0f ? make_uint4(0, 0, 0, 0) : " or "")$(early and "ld_global_last_v4" or "ld_global_v4")(sum + dq_lane(4 * g + t));
        const u32 of_lane[4] = {x.x, x.y, x.z, x.w};
@ end
#pragma unroll
        for (int e = 0; e < 4; ++e) dq[e / 2][2 * t + e % 2] = $(arch.vector_add and "__uint_as_float(of_lane[e])" or "sum[dq_lane(4 * g + t) + 32 * e]") * $(stored and "scale" or "p.scale");
    }
    Element *to = p.dq + q_start(at, p.dq_batch_stride, p.dq_row_stride) + h * p.dq_head_stride + first * p.dq_row_stride + chunk * 8;
    store_elements(to, dq[0]);
    if (first + 8 < at.seqlen_q) store_elements(to + 8 * p.dq_row_stride, dq[1]);
}

extern "C" __global__ void __launch_bounds__(128) fk_backward_dq(const __grid_constant__ Params p) {
    if (is_off(p)) return;
@ if problem.packed and plan.family == "wgmma" then
    start_next(); // fk_backward_rest, which needs nothing of this kernel
@ end
    int h;
@ if problem.packed then
    constexpr int parts = block_m * (head_dim / 8) / 2;
@   if early then
    wait_for_previous();
@   end
    int tile = blockIdx.x; // this block's
    const Sequence at = this_head(p, tile, h);
    if (at.b < 0) return;
    for (int i = threadIdx.x; i < parts; i += 128) store_dq(p, at, h, tile * parts + i);
@ else
    const Sequence at = this_head(p, h$(counted and ", false" or ""));
@   if counted then
    // This kernel fills the GPU while the last CTAs of the main kernel run, all of which have started. A head's sums are there when its
    // CTAs are done.
    if (at.b >= 0 && threadIdx.x == 0) {
        const u32 *done = p.claims + at.b * p.num_heads_kv + h / p.heads_per_kv, all = (p.seqlen_k + block_n - 1) / block_n$(problem.slices > 1 and " * slices" or "");
        while (ld_acquire_u32(done) != all) {}
    }
    __syncthreads();
@   end
    if (at.b >= 0) store_dq(p, at, h, blockIdx.x * 128 + threadIdx.x);
@   if counted then
    if (blockIdx.x + blockIdx.y + blockIdx.z == 0) wait_for_previous(); // this kernel ends after it
@   end
@ end
}
@ end
