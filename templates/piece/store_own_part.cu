// Of a part of a tile O, whose rows have been given their factors, and lse, in float32. What the part writes as well as if it were a tile,
// fk_forward_combine replaces. Rows behind the last query have their places, too.
__device__ __forceinline__ void store_part(const float (&o)[m_atoms][o_atoms][4], const float (&lse)[m_atoms][2], const Params &p,
                                           const Leaving &there) {
    const int lane = lane_anew();
    const i64 row = i64(there.claim - p.first_part) * block_m + warp_row() + lane / 4;
@ local halved = plan.halved
    float2 *out = reinterpret_cast<float2 *>(p.o_partial + row * head_dim_v$(halved and " + first_column()" or "")) + lane % 4;
#pragma unroll
    for (int r = 0; r < 2; ++r) {
        if (lane % 4 == 0$(halved and " && cluster_rank() == 0" or "")) p.lse_partial[row + 8 * r] = lse[0][r];
#pragma unroll
        for (int n = 0; n < $(halved and "own_dv" or "head_dim_v") / 8; ++n) $(halved and "if (8 * n < num_columns()) " or "")out[4 * (r * head_dim_v + n)] = make_float2(o[0][n][2 * r], o[0][n][2 * r + 1]);
    }
}

