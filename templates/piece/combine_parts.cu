// Rows of tiles that came in parts, each part's O weighted by the sum that it was divided by. A thread adds up 4 columns of a row. Where a
// row has many parts, the warps of a block take these in turn, and the first one adds up what they have, in their order: no order is left
// to chance.
constexpr int parts_ahead = 4, shared_parts_ahead = 8; // that are read at once, as each read is waited for longer than it takes

// O of some parts, times 2^(log2 e (lse - top)), and the sum of these factors.
struct PartSum {
    float top, sum, acc[4];

    // Refers to the larger one of both tops from here on, and returns it; where neither has a key, 0, so that -inf - -inf is no NaN.
    __device__ __forceinline__ float raise(float other) {
        const float above = fmaxf(top, other), unit = above == NEG_INF ? 0.0f : above;
        const float alpha = ex2((top - unit) * 1.4426950408889634f);
        sum *= alpha;
#pragma unroll
        for (int e = 0; e < 4; ++e) acc[e] *= alpha;
        top = above;
        return unit;
    }
    __device__ __forceinline__ void add(float weight, uint4 x) {
        acc[0] = fmaf(weight, __uint_as_float(x.x), acc[0]);
        acc[1] = fmaf(weight, __uint_as_float(x.y), acc[1]);
        acc[2] = fmaf(weight, __uint_as_float(x.z), acc[2]);
        acc[3] = fmaf(weight, __uint_as_float(x.w), acc[3]);
    }
    // Parts FROM, FROM + STEP, ... below END, whose rows are block_m apart, AHEAD at a time.
    template <int AHEAD> __device__ __forceinline__ void add(const float *lse, const float *o, int from, int step, int end) {
#pragma unroll 1
        for (; from < end; from += AHEAD * step) {
            float weight[AHEAD], above = NEG_INF;
            uint4 x[AHEAD];
#pragma unroll
            for (int n = 0; n < AHEAD; ++n) {
                const int part = from + n * step;
                if (AHEAD == parts_ahead) { // a few are read without a branch: behind the last part stands the first one again, with no weight
                    const int there = part < end ? part : from;
                    x[n] = ld_global_last_v4(o + there * block_m * head_dim_v), weight[n] = lse[there * block_m];
                } else {
                    x[n] = make_uint4(0, 0, 0, 0), weight[n] = NEG_INF;
                    if (part < end) x[n] = ld_global_last_v4(o + part * block_m * head_dim_v), weight[n] = lse[part * block_m];
                }
            }
#pragma unroll
            for (int n = 0; n < AHEAD; ++n) above = fmaxf(above, weight[n]);
            const float unit = raise(above);
#pragma unroll
            for (int n = 0; n < AHEAD; ++n) {
                if (from + n * step >= end) weight[n] = NEG_INF, x[n] = make_uint4(0, 0, 0, 0);
                weight[n] = ex2((weight[n] - unit) * 1.4426950408889634f);
                add(weight[n], x[n]);
                sum += weight[n];
            }
        }
    }
};

extern "C" __global__ void __launch_bounds__(128) fk_forward_combine(const __grid_constant__ Params p) {
    if (is_off(p)) return;
    wait_for_previous();
    constexpr int chunks = head_dim_v / 4;
    const bool shared = p.num_splits > $(plan.parts_alone);
    const int warp = threadIdx.x / 32, i = shared ? blockIdx.x * 32 + threadIdx.x % 32 : blockIdx.x * 128 + threadIdx.x;
    const int column = i % chunks * 4, row = i / chunks % block_m, tile = p.first_part + i / chunks / block_m;
    const Where at = whole_tile_at(p, tile);
    const int q = at.q_first + row, late = tile - p.late_tile, splits = late < 0 ? p.num_splits : p.late_splits;
    const int part = late < 0 ? (tile - p.first_part) * splits : p.late_part - p.first_part + late * splits;
    const i64 first = i64(part) * block_m + row;
    const float *lse = p.lse_partial + first, *o = p.o_partial + first * head_dim_v + column;
    PartSum all = {NEG_INF, 0.0f, {}};
    if (!shared) {
        if (q > at.q_last) return;
        all.add<parts_ahead>(lse, o, 0, 1, splits);
    } else {
        all.add<shared_parts_ahead>(lse, o, warp, 4, q > at.q_last ? 0 : splits);
        const u32 mine = smem_base() + threadIdx.x * 16, factors = smem_base() + 128 * 16 + threadIdx.x * 8;
        st_shared_v4(mine, make_uint4(__float_as_uint(all.acc[0]), __float_as_uint(all.acc[1]), __float_as_uint(all.acc[2]), __float_as_uint(all.acc[3])));
        st_shared_u32(factors, __float_as_uint(all.top));
        st_shared_u32(factors + 4, __float_as_uint(all.sum));
        __syncthreads();
        if (warp > 0) return;
#pragma unroll
        for (int other = 1; other < 4; ++other) {
            const float top = __uint_as_float(ld_shared_u32(factors + other * 32 * 8)), sum = __uint_as_float(ld_shared_u32(factors + other * 32 * 8 + 4));
            const float weight = ex2((top - all.raise(top)) * 1.4426950408889634f);
            all.add(weight, ld_shared_v4(mine + other * 32 * 16));
            all.sum = fmaf(weight, sum, all.sum);
        }
    }
    if (q > at.q_last) return;
    const float inverse = all.sum == 0.0f ? 0.0f : rcp(all.sum);
    if (column == 0 && p.lse) p.lse[lse_start(p, at, at.h) + q] = all.sum == 0.0f ? NEG_INF : all.top + lg2(all.sum) * 0.6931471805599453f;
    u32 *out = reinterpret_cast<u32 *>(p.o + at.b * p.o_batch_stride + at.h * p.o_head_stride + q * p.o_row_stride + column);
    out[0] = pack_$(problem.output_dtype)(all.acc[0] * inverse, all.acc[1] * inverse);
    out[1] = pack_$(problem.output_dtype)(all.acc[2] * inverse, all.acc[3] * inverse);
}
