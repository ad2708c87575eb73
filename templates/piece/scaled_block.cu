// Block j of a warp's rows of the output, each times its factor, packed: of the left atom rows g and g + 8, then of the right one. `spoiled` of
// the two rows stays 0 unless an element is not finite.
__device__ __forceinline__ void scaled_block(u32 (&block)[4], u32 (&spoiled)[2], float (&o)[o_atoms][4], const float (&factor)[2], int j) {
#pragma unroll
    for (int e = 0; e < 8; ++e) o[2 * j + e / 4][e % 4] *= factor[e / 2 % 2];
    pack_block(block, o, j);
#pragma unroll
    for (int e = 0; e < 4; ++e) spoiled[e % 2] = spoil_$(problem.output_dtype)(spoiled[e % 2], block[e]);
}
