@ include("piece/send_rows.cu")

@ local dv_cols, panels = layout.dv_cols, layout.out_panels
constexpr u32 smem_out = $(layout.out), panel_bytes = 16 * 128; // of each warp $(panels) panels

// Writes the warp's rows of the output, each times its factor, in panels of 64 columns from where TMA takes them: a tile's buffer of Q is the
// next one's by then. `spoiled` of rows g and g + 8 stays 0 unless an element is not finite.
__device__ __forceinline__ void store_rows(float (&o)[m_atoms][o_atoms][4], const float (&factor)[m_atoms][2], u32 (&spoiled)[2],
                                           u32 smem, const Params &p, const Leaving &there) {
    const int lane = threadIdx.x % 32, first = warp_row();
    const u32 own = smem + smem_out + first / 16 * $(panels) * panel_bytes;
#pragma unroll
    for (int panel = 0; panel < $(dv_cols // 64); ++panel) {
        const u32 tile = own + panel % $(panels) * panel_bytes;
        if (panel == 0) tma_store_wait_read<0>(); // those of the tile before
        if (panel >= $(panels)) tma_store_wait_read<$(panels - 1)>();
        __syncwarp();
#pragma unroll
        for (int j = 4 * panel; j < 4 * panel + 4 && j < o_atoms / 2; ++j) {
            u32 block[4];
            scaled_block(block, spoiled, o[0], factor[0], j);
            stmatrix_x4(tile + fragment_offset<16, 64>(0, lane % 16, j % 4, lane / 16), block);
        }
@ if problem.packed then
        send_rows<16, 64, head_dim_v>(tile, 0, p.map_o, first, there.rows, 64 * panel, there.h, there.first, p.o + there.first * p.o_row_stride + there.h * p.o_head_stride, p.o_row_stride);
@ else
        send_rows<16, 64, head_dim_v>(tile, 0, p.map_o, there.first + first, p.seqlen_q, 64 * panel, there.h, there.b);
@ end
    }
}
