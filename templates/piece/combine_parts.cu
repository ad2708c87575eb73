// Rows of tiles that came in parts, each part's O weighted by the sum that it was divided by. A thread adds up 4 columns of a row, part by
// part: no order is left to chance.
constexpr int parts_ahead = 4; // that are read at once, as each read is waited for longer than it takes

extern "C" __global__ void __launch_bounds__(128) fk_forward_combine(const __grid_constant__ Params p) {
    if (is_off(p)) return;
    wait_for_previous();
    constexpr int chunks = head_dim_v / 4;
    const int i = blockIdx.x * 128 + threadIdx.x, column = i % chunks * 4, row = i / chunks % block_m, tile = p.first_part + i / chunks / block_m;
    const Where at = whole_tile_at(p, tile);
    const int q = at.q_first + row, late = tile - p.late_tile, splits = late < 0 ? p.num_splits : p.late_splits;
    const int part = late < 0 ? (tile - p.first_part) * splits : p.late_part - p.first_part + late * splits;
    if (q > at.q_last) return;
    const i64 first = i64(part) * block_m + row; // of the parts' rows, which are block_m apart
    const float *lse = p.lse_partial + first, *o = p.o_partial + first * head_dim_v + column;
    float top = NEG_INF, sum = 0.0f, acc[4] = {};
#pragma unroll 1
    for (int split = 0; split < splits; split += parts_ahead) {
        float weight[parts_ahead], above = top;
        uint4 x[parts_ahead];
#pragma unroll
        for (int n = 0; n < parts_ahead; ++n) { // behind the last part stands the last one again, with no weight
            const int of = min(n, splits - 1 - split);
            x[n] = ld_global_last_v4(o + of * block_m * head_dim_v);
            weight[n] = lse[of * block_m];
        }
#pragma unroll
        for (int n = 0; n < parts_ahead; ++n) above = fmaxf(above, weight[n]);
        const float unit = above == NEG_INF ? 0.0f : above, alpha = ex2((top - unit) * 1.4426950408889634f);
        sum *= alpha;
#pragma unroll
        for (int e = 0; e < 4; ++e) acc[e] *= alpha;
#pragma unroll
        for (int n = 0; n < parts_ahead; ++n) {
            if (split + n >= splits) weight[n] = NEG_INF, x[n] = make_uint4(0, 0, 0, 0);
            weight[n] = ex2((weight[n] - unit) * 1.4426950408889634f);
            const u32 bits[4] = {x[n].x, x[n].y, x[n].z, x[n].w};
#pragma unroll
            for (int e = 0; e < 4; ++e) acc[e] = fmaf(weight[n], __uint_as_float(bits[e]), acc[e]);
            sum += weight[n];
        }
        top = above;
        lse += parts_ahead * block_m, o += parts_ahead * block_m * head_dim_v;
    }
    const float inverse = sum == 0.0f ? 0.0f : rcp(sum);
    if (column == 0 && p.lse) p.lse[lse_start(p, at, at.h) + q] = sum == 0.0f ? NEG_INF : top + lg2(sum) * 0.6931471805599453f;
    u32 *out = reinterpret_cast<u32 *>(p.o + at.b * p.o_batch_stride + at.h * p.o_head_stride + q * p.o_row_stride + column);
    out[0] = pack_$(problem.output_dtype)(acc[0] * inverse, acc[1] * inverse);
    out[1] = pack_$(problem.output_dtype)(acc[2] * inverse, acc[3] * inverse);
}
