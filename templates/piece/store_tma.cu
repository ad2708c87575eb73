// Packs the warp's rows of the output, each times its factor, into its own rows of a tile of queries, which nobody reads any
// more. `spoiled` of rows g and g + 8 stays 0 unless an element is not finite.
__device__ __forceinline__ void stage_rows(float (&o)[m_atoms][o_atoms][4], const float (&factor)[m_atoms][2], u32 (&spoiled)[2],
                                           u32 tile) {
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int j = 0; j < o_atoms / 2; ++j) {
#pragma unroll
        for (int e = 0; e < 8; ++e) o[0][2 * j + e / 4][e % 4] *= factor[0][e / 2 % 2];
        u32 block[4];
        pack_block(block, o[0], j);
        stmatrix_x4(tile + fragment_offset<block_m, $(layout.dv_cols)>(0, warp_row() + lane % 16, j, lane / 16), block);
#pragma unroll
        for (int e = 0; e < 4; ++e) spoiled[e % 2] = spoil_$(problem.output_dtype)(spoiled[e % 2], block[e]);
    }
}

// Sends those rows, from row_0 of the tile on, on their way; TMA leaves out those that do not exist.
__device__ __forceinline__ void store_staged(u32 tile, int row_0, const Params &p, const Leaving &there) {
    fence_proxy_async();
    __syncwarp();
@ if problem.packed then
    if (row_0 + 16 > there.rows) { // the rows behind are another sequence's
        constexpr int chunks = head_dim_v / 8;
        Output *out = p.o + (there.first + row_0) * p.o_row_stride + there.h * p.o_head_stride;
        for (int i = threadIdx.x % 32; i < 16 * chunks; i += 32)
            if (row_0 + i / chunks < there.rows)
                st_global_v4(out + i / chunks * p.o_row_stride + i % chunks * 8,
                             ld_shared_v4(tile + tile_offset<block_m, $(layout.dv_cols)>(row_0 + i / chunks, i % chunks)));
        return;
    }
@ end
    if (elect_lane()) {
        if (row_0 < there.rows) {
#pragma unroll
            for (int panel = 0; panel < $(layout.dv_cols // 64); ++panel)
                tma_store_4d(&p.map_o, tile + panel * (block_m * 128) + row_0 * 128, 64 * panel, there.first + row_0, there.h,
                             $(problem.packed and "0" or "there.b"));
            tma_store_commit();
        }
    }
}
