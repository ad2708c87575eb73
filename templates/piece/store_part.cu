// Of a part of a tile O, each row times its factor, and lse, in float32: piece/combine.cu adds up what splits leave. `spoiled` as below.
__device__ __forceinline__ void store_part(float (&o)[m_atoms][o_atoms][4], const float (&factor)[m_atoms][2], const float (&lse)[m_atoms][2],
                                           u32 (&spoiled)[2], const Params &p, const Leaving &there) {
    const int lane = lane_anew(), first = there.first + warp_row() + lane / 4;
    const i64 row = there.split * p.partial_rows + i64(there.b * p.num_heads_q + there.h) * $(mask.leading_rows) + first;
@ local halved = plan.halved
    float2 *out = reinterpret_cast<float2 *>(p.o_partial + row * head_dim_v$(halved and " + first_column()" or "")) + lane % 4;
#pragma unroll
    for (int r = 0; r < 2; ++r) {
        if (lane % 4 == 0$(halved and " && cluster_rank() == 0" or "")) p.lse_partial[row + 8 * r] = lse[0][r]; // rows behind the last query have their places, too
#pragma unroll
        for (int n = 0; n < $(halved and "own_dv" or "head_dim_v") / 8; ++n) {
@ if halved then
            if (8 * n >= num_columns()) continue;
@ end
            const float x = o[0][n][2 * r] * factor[0][r], y = o[0][n][2 * r + 1] * factor[0][r];
            spoiled[r] = spoil_$(problem.output_dtype)(spoiled[r], pack_$(problem.output_dtype)(x, y));
            out[4 * (r * head_dim_v + n)] = make_float2(x, y);
        }
    }
}

