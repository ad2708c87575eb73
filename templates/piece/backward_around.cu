// ---- before and after: row statistics, and dQ from its fp32 sum ----

// The head that a row kernel works on; -1 past the last one.
__device__ __forceinline__ int this_head(const Params &p) {
    const int head = blockIdx.y + gridDim.y * blockIdx.z;
    return head < p.batch * p.num_heads_q ? head : -1;
}

// delta = rowsum(dO * O) - dlse and lse in base 2, a warp a row; clears the row's sum of dQ.
extern "C" __global__ void __launch_bounds__(128) fk_backward_delta(const __grid_constant__ Params p) {
    const int head = this_head(p), q = blockIdx.x * 4 + threadIdx.x / 32, lane = threadIdx.x % 32;
    if (head < 0) return;
    const int b = quotient(head, p.num_heads_q, p.heads_inverse), h = head - b * p.num_heads_q;
    const i64 row = i64(head) * p.q_padded + q;
    float delta = 0.0f, lse_log2 = -NEG_INF;
    if (q < p.seqlen_q) {
        if (lane < head_dim_v / 8) {
            const uint4 o = ld_global_v4(p.o + b * p.o_batch_stride + h * p.o_head_stride + q * p.o_row_stride + lane * 8);
            const uint4 g = ld_global_v4(p.dout + b * p.dout_batch_stride + h * p.dout_head_stride + q * p.dout_row_stride + lane * 8);
            const u32 o_pairs[4] = {o.x, o.y, o.z, o.w}, g_pairs[4] = {g.x, g.y, g.z, g.w};
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                const float2 x = unpack_$(problem.dtype)(o_pairs[i]), y = unpack_$(problem.dtype)(g_pairs[i]);
                delta = fmaf(x.x, y.x, fmaf(x.y, y.y, delta));
            }
        }
#pragma unroll
        for (int step = 16; step > 0; step /= 2) delta += __shfl_xor_sync(full_warp, delta, step);
        const i64 at = i64(head) * p.seqlen_q + q;
        if (p.dlse) delta -= p.dlse[at];
        if (p.lse[at] != NEG_INF) lse_log2 = p.lse[at] * 1.4426950408889634f;
    }
    if (lane == 0) {
        p.delta[row] = delta;
        p.lse_log2[row] = lse_log2;
    }
    for (int i = lane; i < d_pad / 4; i += 32) st_global_v4(p.dq_acc + row * d_pad + i * 4, make_uint4(0, 0, 0, 0));
}

// dQ = scale * sum, 8 elements a thread.
extern "C" __global__ void __launch_bounds__(256) fk_backward_dq(const __grid_constant__ Params p) {
    const int head = this_head(p), i = blockIdx.x * 256 + threadIdx.x;
    const int q = i / (head_dim / 8), chunk = i % (head_dim / 8);
    if (head < 0 || q >= p.seqlen_q) return;
    const int b = quotient(head, p.num_heads_q, p.heads_inverse), h = head - b * p.num_heads_q;
    const float *sum = p.dq_acc + (i64(head) * p.q_padded + q) * d_pad + chunk * 8;
    u32 out[4];
#pragma unroll
    for (int e = 0; e < 4; ++e) out[e] = pack_$(problem.dtype)(sum[2 * e] * p.scale, sum[2 * e + 1] * p.scale);
    st_global_v4(p.dq + b * p.dq_batch_stride + h * p.dq_head_stride + q * p.dq_row_stride + chunk * 8,
                 make_uint4(out[0], out[1], out[2], out[3]));
}
