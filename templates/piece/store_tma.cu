// Packs the warp's rows of the output, each times its factor, into its own rows of a tile of queries, which nobody reads any
// more. `spoiled` of rows g and g + 8 stays 0 unless an element is not finite.
__device__ __forceinline__ void stage_rows(float (&o)[m_atoms][o_atoms][4], const float (&factor)[m_atoms][2], u32 (&spoiled)[2],
                                           u32 tile) {
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int j = 0; j < o_atoms / 2; ++j) {
        u32 block[4];
        scaled_block(block, spoiled, o[0], factor[0], j);
        stmatrix_x4(tile + fragment_offset<block_m, $(layout.dv_cols)>(0, warp_row() + lane % 16, j, lane / 16), block);
    }
}

@ include("piece/send_rows.cu")
