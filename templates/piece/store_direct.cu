// Writes the warp's rows of the output, each times its factor, straight to global memory, so that no buffer of Q need wait for it.
// Lanes trade in pairs, so that a row gets 32 bytes at a time, a whole sector. `spoiled` of rows g and g + 8 stays 0 unless an element is
// not finite.
__device__ __forceinline__ void store_rows(float (&o)[m_atoms][o_atoms][4], const float (&factor)[m_atoms][2], u32 (&spoiled)[2],
                                           const Params &p, const Leaving &there) {
    const int lane = $(problem.dtype == "e4m3" and "lane_anew()" or "threadIdx.x % 32"), odd = lane % 2, row = warp_row() + lane / 4;
    Output *out = p.o + $(plan.halved and "first_column() + " or "")$(problem.packed and "" or "there.b * p.o_batch_stride + ")there.h * p.o_head_stride + (there.first + row) * p.o_row_stride + lane % 4 / 2 * 4;
#pragma unroll
    for (int j = 0; j < o_atoms / 2; ++j) {
        u32 block[4]; // of the left atom rows g and g + 8, then of the right one
        scaled_block(block, spoiled, o[0], factor[0], j);
#pragma unroll
        for (int r = 0; r < 2; ++r) { // an even lane takes the left atom, an odd one the right
            const u32 kept = odd ? block[2 + r] : block[r];
            const u32 got = __shfl_xor_sync(full_warp, odd ? block[r] : block[2 + r], 1);
            const int col = (2 * j + odd) * 8;
            if (row + 8 * r < there.rows && (dv_pad == $(plan.halved and "head_dim_v / 2" or "head_dim_v") || col < $(plan.halved and "num_columns()" or "head_dim_v")))
                *reinterpret_cast<float2 *>(out + 8 * r * p.o_row_stride + col) =
                    make_float2(__uint_as_float(odd ? got : kept), __uint_as_float(odd ? kept : got));
        }
    }
}
