// Rows of tiles that came in parts, each part's O weighted by the sum that it was divided by. A thread adds up 8 columns of a row, part by
// part: no order is left to chance.
extern "C" __global__ void __launch_bounds__(128) fk_forward_combine(const __grid_constant__ Params p) {
    constexpr int chunks = head_dim_v / 8;
    const int i = blockIdx.x * 128 + threadIdx.x, column = i % chunks * 8, nth = i / chunks / block_m, row = i / chunks % block_m;
    const int early = p.late_tile - p.first_part, claim = nth < early ? p.first_part + nth * p.num_splits : p.late_part + (nth - early) * p.late_splits;
    if (claim >= p.num_tiles) return;
    const Where at = tile_at(p, claim);
    const int q = at.q_first + row, splits = nth < early ? p.num_splits : p.late_splits;
    if (q > at.q_last) return;
    const i64 first = i64(claim - p.first_part) * block_m + row; // of the parts' rows, which are block_m apart
    const float *lse = p.lse_partial + first, *o = p.o_partial + first * head_dim_v + column;
    float top = NEG_INF, sum = 0.0f, acc[8] = {};
    for (int split = 0; split < splits; ++split) top = fmaxf(top, lse[split * block_m]);
    const float unit = top == NEG_INF ? 0.0f : top;
#pragma unroll 2
    for (int split = 0; split < splits; ++split) {
        const float weight = expf(lse[split * block_m] - unit);
        const float *from = o + i64(split) * (block_m * head_dim_v);
        const uint4 x = ld_global_v4(from), y = ld_global_v4(from + 4);
        const u32 bits[8] = {x.x, x.y, x.z, x.w, y.x, y.y, y.z, y.w};
#pragma unroll
        for (int e = 0; e < 8; ++e) acc[e] = fmaf(weight, __uint_as_float(bits[e]), acc[e]);
        sum += weight;
    }
    const float inverse = sum == 0.0f ? 0.0f : 1.0f / sum;
#pragma unroll
    for (int e = 0; e < 8; ++e) acc[e] *= inverse;
    if (column == 0 && p.lse) p.lse[lse_start(p, at, at.h) + q] = sum == 0.0f ? NEG_INF : unit + logf(sum);
    store_elements(p.o + at.b * p.o_batch_stride + at.h * p.o_head_stride + q * p.o_row_stride + column, acc);
}
