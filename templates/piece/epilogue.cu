// O = acc / l and lse = m + log l. A row that saw no key has l = 0: its output is 0, its lse -inf.
// The tile passes through shared memory, so that rows leave in 16-byte pieces; each warp reads back only its own rows.
__device__ __forceinline__ void store_output(float (&o)[m_atoms][o_atoms][4], const float (&m_i)[m_atoms][2],
                                             const float (&l_i)[m_atoms][2], u32 tile_o, const Params &p, const Where &at) {
    const int thread = opaque(int(threadIdx.x)), lane = thread % 32, row_0 = thread / 32 * rows_per_warp;
    __syncthreads(); // every warp is done with the tiles that the output overlays
#pragma unroll
    for (int m = 0; m < m_atoms; ++m)
#pragma unroll
        for (int r = 0; r < 2; ++r) {
            const int row = row_0 + 16 * m + 8 * r + lane / 4, q = at.q_first + row;
            const float l = quad_sum(l_i[m][r]);
            const float inv = l == 0.0f ? 0.0f : 1.0f / l;
            if (p.lse && lane % 4 == 0 && q < at.seqlen_q)
                p.lse[(i64(at.b) * p.num_heads_q + at.h) * at.seqlen_q + q] = l == 0.0f ? NEG_INF : m_i[m][r] * p.scale + logf(l);
#pragma unroll
            for (int n = 0; n < o_atoms; ++n)
                st_shared_u32(tile_o + tile_offset<block_m, dv_pad>(row, n) + lane % 4 * 4,
                              pack_$(problem.dtype)(o[m][n][2 * r] * inv, o[m][n][2 * r + 1] * inv));
        }
    __syncwarp();
    constexpr int lanes = lanes_for(dv_pad / 8), step = 32 / lanes;
    const int chunk = lane % lanes;
    Element *out = p.o + at.b * p.o_batch_stride + at.h * p.o_head_stride;
#pragma unroll
    for (int i = 0; i < rows_per_warp / step; ++i) {
        const int row = row_0 + i * step + lane / lanes, q = at.q_first + row;
        if (q < at.seqlen_q && chunk * 8 < head_dim_v)
            st_global_v4(out + q * p.o_row_stride + chunk * 8, ld_shared_v4(tile_o + tile_offset<block_m, dv_pad>(row, chunk)));
    }
}
