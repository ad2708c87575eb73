// dK and dV of keys whose queries were split: a thread adds up 8 columns of a row, split by split.
extern "C" __global__ void __launch_bounds__(128) fk_backward_combine(const __grid_constant__ Params p) {
    if (is_off(p)) return;
    constexpr int chunks = split_columns / 8;
    const int head = blockIdx.y + gridDim.y * blockIdx.z, i = blockIdx.x * 128 + threadIdx.x, k = i / chunks, column = i % chunks * 8;
@ if problem.packed then
    const int kv_head = head;
    if (kv_head >= p.num_heads_kv || k < p.cu_seqlens_k[0] || k >= split_keys(p)) return; // others are nobody's
    Sequence at = sequence(p, 0); // k counts through all
    at.k_offset = 0;
@ else
    if (head >= p.batch * p.num_heads_kv || k >= split_keys(p)) return;
    const int b = head / p.num_heads_kv, kv_head = head - b * p.num_heads_kv;
    const Sequence at = sequence(p, b);
@ end
    float sum[8] = {};
#pragma unroll 4
    for (int split = 0; split < p.num_splits; ++split) {
        const float *from = split_row(p, split, at, kv_head, k) + column;
        const uint4 x = ld_global_v4(from), y = ld_global_v4(from + 4);
        const u32 bits[8] = {x.x, x.y, x.z, x.w, y.x, y.y, y.z, y.w};
#pragma unroll
        for (int e = 0; e < 8; ++e) sum[e] += __uint_as_float(bits[e]);
    }
    if (column < head_dim) {
#pragma unroll
        for (int e = 0; e < 8; ++e) sum[e] *= p.scale;
        store_elements(p.dk + k_start(at, p.dk_batch_stride, p.dk_row_stride) + kv_head * p.dk_head_stride + k * p.dk_row_stride + column, sum);
    } else {
        Element *dv = p.dv + k_start(at, p.dv_batch_stride, p.dv_row_stride) + kv_head * p.dv_head_stride + k * p.dv_row_stride;
        store_elements(dv + column - head_dim, sum);
    }
}
