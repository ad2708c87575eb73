// The steps of one pair of key tile and query tile (FlashAttention-2, algorithm 2), transposed: a warp owns rows of keys, so
// that P^T and dS^T are operands of dV and dK straight from the registers. Only dS passes through shared memory, for dQ, unless
// dQ has a kernel of its own.

@ local wgmma = plan.family == "wgmma"
@ if not wgmma then
// The row statistics of a query tile: block_m floats.
struct RowCopy {
    const float *src;
    __device__ __forceinline__ void issue(u32 dst, int first) {
        if (threadIdx.x < block_m / 4)
@ if arch.async_copy then
            cp_async_16(dst + threadIdx.x * 16, src + first + threadIdx.x * 4, true);
@ else
            st_shared_v4(dst + threadIdx.x * 16, ld_global_v4(src + first + threadIdx.x * 4));
@ end
    }
@ if plan.parted then
    // To where the tile's parts are, by who has copied.
    static __device__ __forceinline__ void take(u32 dst, u32 from) {
        if (threadIdx.x < block_m / 4) st_shared_v4(dst + threadIdx.x * 16, ld_shared_v4(from + threadIdx.x * 16));
    }
@ end
};

@ end
@ local fp32 = problem.dtype == "fp32"
@ if fp32 then
// factor e^(x + rest): what x log2(e) loses by rounding goes to the rest. 0 at -inf.
__device__ __forceinline__ float exp_of_sum(float x, float rest, float factor) {
    const float x_log2 = x * 1.4426950408889634f, p = ex2(x_log2) * factor;
    rest += fmaf(x_log2, -0.6931471805599453f, x);
    return fmaf(p, fabsf(rest) < 1.0f ? rest : 0.0f, p);
}

@   if #score.terms > 0 then
// factor e^(s - lse). s has the bits that it has in lse, so that the two cancel: of a single key P is 1.
// A query without keys has lse = +inf, hence p = 0.
__device__ __forceinline__ float probability(float s, float lse, float factor) { return exp_of_sum(s - lse, 0.0f, factor); }
@   else
// factor e^(scale (s + low) - lse). A difference that is not above the rounding of lse is none: of a single key P is 1.
// A query without keys has lse = +inf, hence p = 0.
__device__ __forceinline__ float probability(float s, float low, float scale, float lse, float factor) {
    const float most = fmaf(s, scale, -lse), x = fmaf(low, scale, most);
    return fabsf(x) < fmaf(fabsf(lse), 0x1p-24f, 0x1p-23f) ? factor : exp_of_sum(x, fmaf(low, scale, most - x), factor);
}
@   end

// S^T -> P^T.
__device__ __forceinline__ void probabilities(float (&s)[m_atoms][q_atoms][4], $(#score.terms == 0 and "const float (&low)[m_atoms][q_atoms][4], " or "")u32 lse, $(#score.terms == 0 and "float scale, " or "")float factor) {
@ else
// S^T -> P^T = 2^(scale_log2 s - lse_log2). A query without keys has lse_log2 = +inf, hence p = 0.
__device__ __forceinline__ void probabilities(float (&s)[m_atoms][q_atoms][4], u32 lse, float scale_log2) {
@ end
#pragma unroll
    for (int n = 0; n < q_atoms; ++n) {
        const float2 l = ld_shared_f32x2(lse + (warp_col() + 8 * n + 2 * (threadIdx.x % 4)) * 4);
#pragma unroll
        for (int m = 0; m < m_atoms; ++m)
#pragma unroll
            for (int e = 0; e < 4; ++e) s[m][n][e] = $(fp32 and "probability(s[m][n][e], " .. (#score.terms == 0 and "low[m][n][e], scale, " or "") .. "e % 2 ? l.y : l.x, factor)" or "ex2(fmaf(s[m][n][e], scale_log2, e % 2 ? -l.y : -l.x))");
    }
}

@ local fused = score.derivatives_use_s -- then P is not there until the way back
@ if problem.dropout and not fused then
// dS^T = P~^T * dP^T - P^T * delta, in place of dP^T, where P~ is P without what is dropped and takes its place.
__device__ __forceinline__ void score_gradients(float (&dp)[m_atoms][q_atoms][4], float (&p)[m_atoms][q_atoms][4], u32 delta,
                                                const Dropout<true> &dropout) {
#pragma unroll
    for (int n = 0; n < q_atoms; ++n) {
        const float2 d = ld_shared_f32x2(delta + (warp_col() + 8 * n + 2 * (threadIdx.x % 4)) * 4);
#pragma unroll
        for (int m = 0; m < m_atoms; ++m) {
            u32 w[2];
            dropout.signs(w, m, n / 2);
#pragma unroll
            for (int e = 0; e < 4; ++e) {
                const float p_delta = p[m][n][e] * (e % 2 ? d.y : d.x);
                p[m][n][e] = dropout.select(w, n % 2, e, p[m][n][e], 0.0f);
                dp[m][n][e] = fmaf(p[m][n][e], dp[m][n][e], -p_delta);
            }
        }
    }
}
@ else
@   if wgmma then
// dP^T -> dP^T - delta.
__device__ __forceinline__ void subtract_delta(float (&dp)[m_atoms][q_atoms][4], u32 delta) {
#pragma unroll
    for (int n = 0; n < q_atoms; ++n) {
        const float2 d = ld_shared_f32x2(delta + (warp_col() + 8 * n + 2 * (threadIdx.x % 4)) * 4);
#pragma unroll
        for (int e = 0; e < 4; ++e) dp[0][n][e] -= e % 2 ? d.y : d.x;
    }
}
@   else
// dP^T starts from -delta, so that dS = P * (dP - delta) is one product.
__device__ __forceinline__ void fill_minus_delta(float (&dp)[m_atoms][q_atoms][4], u32 delta) {
#pragma unroll
    for (int n = 0; n < q_atoms; ++n) {
        const float2 d = ld_shared_f32x2(delta + (warp_col() + 8 * n + 2 * (threadIdx.x % 4)) * 4);
#pragma unroll
        for (int m = 0; m < m_atoms; ++m)
#pragma unroll
            for (int e = 0; e < 4; ++e) dp[m][n][e] = e % 2 ? -d.y : -d.x;
    }
}
@   end

@   if problem.dropout then
// dP^T - delta -> (dP^T where the element is kept, else 0) - delta.
__device__ __forceinline__ void drop_gradients(float (&dp)[m_atoms][q_atoms][4], u32 delta, const Dropout<true> &dropout) {
#pragma unroll
    for (int n = 0; n < q_atoms; ++n) {
        const float2 d = ld_shared_f32x2(delta + (warp_col() + 8 * n + 2 * (threadIdx.x % 4)) * 4);
#pragma unroll
        for (int m = 0; m < m_atoms; ++m) {
            u32 w[2];
            dropout.signs(w, m, n / 2);
#pragma unroll
            for (int e = 0; e < 4; ++e) dp[m][n][e] = dropout.select(w, n % 2, e, dp[m][n][e], e % 2 ? -d.y : -d.x);
        }
    }
}
@   else
// dS^T = P^T * dP^T, in place of dP^T.
__device__ __forceinline__ void score_gradients(float (&dp)[m_atoms][q_atoms][4], const float (&p)[m_atoms][q_atoms][4]) {
#pragma unroll
    for (int m = 0; m < m_atoms; ++m)
#pragma unroll
        for (int n = 0; n < q_atoms; ++n)
#pragma unroll
            for (int e = 0; e < 4; ++e) dp[m][n][e] *= p[m][n][e];
}
@   end
@ end
@ if wgmma then

// The warp's share of P^T or dS^T, packed, to a panel in shared memory, [key][query].
__device__ __forceinline__ void share(const u32 (&x)[q_atoms / 2][4], u32 tile) {
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int j = 0; j < q_atoms / 2; ++j)
        stmatrix_x4(tile + fragment_offset<own_n, part_m>(0, warp_row() + lane % 16, warp_col() / 16 + j, lane / 16), x[j]);
}
@ elseif layout.col_warps > 1 or problem.slices > 1 or not plan.dq_kernel then

// The warp's part of P^T or dS^T to a tile in shared memory, [key][query].
template <class Edit = Unedited>
__device__ __forceinline__ void share(const float (&x)[m_atoms][q_atoms][4], u32 tile, const Edit &edit = Edit()) {
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int m = 0; m < m_atoms; ++m)
#pragma unroll
        for (int j = 0; j < q_atoms / 2; ++j) {
@ if problem.dtype == "fp32" then
            float a[2][4];
            take_block(a, x[m], j);
            edit(a, m, j);
@   if plan.parted then
            Split<4> split;
#pragma unroll
            for (int e = 0; e < 4; ++e) split.set(e, a[e / 2][e % 2 * 2], a[e / 2][e % 2 * 2 + 1]);
#pragma unroll
            for (int e = 0; e < 4; ++e)
#pragma unroll
                for (int n = 0; n < 3; ++n)
                    st_shared_u32(tile + n * part_bytes<block_n, block_m> + lane % 4 * 4 +
                                      chunk_offset<block_n, block_m / 2, q_atoms>(16 * m + e % 2 * 8, warp_row() + lane / 4, warp_col() / 8,
                                                                                  2 * j + e / 2),
                                  split.part[n][e]);
@   else
#pragma unroll
            for (int e = 0; e < 8; ++e)
                st_shared_u32(tile + lane % 2 * 8 + e % 2 * 4 +
                                  chunk_offset<block_n, block_m, 2 * q_atoms>(16 * m + e % 4 / 2 * 8, warp_row() + lane / 4,
                                                                              warp_col() / 4 + lane % 4 / 2, 4 * j + e / 4 * 2),
                              __float_as_uint(a[e / 4][e % 4]));
@   end
@ else
            u32 a[4];
            pack_block(a, x[m], j);
            edit(a, m, j);
#pragma unroll
            for (int e = 0; e < 4; ++e)
                st_shared_u32(tile + lane % 4 * 4 +
                                  chunk_offset<block_n, block_m, q_atoms>(16 * m + e % 2 * 8, warp_row() + lane / 4, warp_col() / 8,
                                                                          2 * j + e / 2),
                              a[e]);
@ end
        }
}
@ end
@ if wgmma then

// dQ's sum lies in memory as it does in the accumulators, atom by atom, so that a warp adds to whole lines.
__device__ __forceinline__ int dq_atom(int rows_16, int cols_8) { return (rows_16 * (d_pad / 8) + cols_8) * 128; }
__device__ __forceinline__ int dq_lane(int lane) { return lane * 4; }
@ elseif not plan.dq_kernel then

// dQ += dS K, added to the fp32 sum in global memory. The warps share the tile: 32 rows of queries each where there are enough.
@ -- The split into rows and columns that fetches the fewest fragments.
@ local sliced = problem.slices > 1
@ local dq_chunks = (layout.d_pad // 16 + problem.slices - 1) // problem.slices -- of 16 columns
@ local dq_row_warps, fewest = 1, math.huge
@ for rows = 1, math.min(plan.warps, plan.block_m // 16) do
@   local cols, chunks = plan.warps // rows, dq_chunks
@   local cost = plan.block_m // 16 // rows + (chunks + cols - 1) // cols
@   if plan.warps % rows == 0 and plan.block_m // 16 % rows == 0 and cost <= fewest then dq_row_warps, fewest = rows, cost end
@ end
@ local shares = plan.warps // dq_row_warps -- of the columns; a warp takes several in turn where one would be too wide
@ while plan.block_m // 16 // dq_row_warps * ((dq_chunks + shares - 1) // shares) > layout.dq_share do shares = shares * 2 end
constexpr int dq_row_warps = $(dq_row_warps), dq_shares = $(shares), dq_turns = $(shares * dq_row_warps // plan.warps);
@ if sliced then
constexpr int slice_atoms = $(2 * dq_chunks), dq_atoms = (slice_atoms / 2 + dq_shares - 1) / dq_shares * 2; // atoms of 8 columns
constexpr bool dq_short = dq_atoms * dq_shares * slices != d_pad / 8;
@ else
constexpr int dq_atoms = (d_pad / 16 + dq_shares - 1) / dq_shares * 2; // atoms of 8 columns
constexpr bool dq_short = dq_atoms * dq_shares != d_pad / 8;
@ end
constexpr int dq_m_atoms = block_m / 16 / dq_row_warps;

// The sum lies in memory as it does in the accumulators, atom by atom, so that a warp adds to whole lines.
__device__ __forceinline__ int dq_atom(int rows_16, int cols_8) { return (rows_16 * (d_pad / 8) + cols_8) * 128; }
__device__ __forceinline__ int dq_lane(int lane) { return $(arch.vector_add and "lane * 4" or "lane"); }

__device__ __forceinline__ void add_dq(float *dq, u32 tile_ds, u32 tile_k$(sliced and ", int slice" or "")) {
@ if sliced then
    const int end = min((slice + 1) * slice_atoms, d_pad / 8);
@ end
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const int row = warp % dq_row_warps * (16 * dq_m_atoms);
#pragma unroll 1
    for (int turn = 0; turn < dq_turns; ++turn) {
        const int atom = $(sliced and "slice * slice_atoms + " or "")(warp / dq_row_warps * dq_turns + turn) * dq_atoms;
        if (atom >= $(sliced and "end" or "d_pad / 8")) return; // more warps than columns
        float acc[dq_m_atoms][dq_atoms][4];
        fill(acc, 0.0f);
        gemm_tn<block_m, block_n, d_pad, dq_short>(acc, tile_ds, row, tile_k, atom);
        float *to = dq + dq_atom(row / 16, atom) + dq_lane(lane);
#pragma unroll
        for (int m = 0; m < dq_m_atoms; ++m)
#pragma unroll
            for (int n = 0; n < dq_atoms; ++n) {
                if (dq_short && atom + n >= $(sliced and "end" or "d_pad / 8")) continue;
@ if arch.vector_add then
                red_add_f32x4(to + dq_atom(m, n), acc[m][n]);
@ else
#pragma unroll
                for (int e = 0; e < 4; ++e) red_add_f32(to + dq_atom(m, n) + 32 * e, acc[m][n][e]);
@ end
            }
    }
}
@ end
