@ -- A mask of two bounds and nothing else: what a row sees of a lane's keys is a run of bits, of which R2P makes predicates seven at a time. Two
@ -- comparisons for each element would be twice as many instructions, and as many more for the compiler to get through.
#ifndef FK_EMULATOR
@ include("primitive/bit_mask.cu")
#endif

// How many of a lane's keys, at distances 0, 1, 8, 9, 16, ... from its first, lie no farther than `distance`.
__device__ __forceinline__ int lane_count(int distance) { return (distance >> 3) + ((distance - 1) >> 3) + 2; }

// Sets the scores of unseen pairs of tile n to -inf.
__device__ __forceinline__ void mask_tile(float (&s)[m_atoms][s_atoms][4], int n, const Params &p, const Where &at$(#staged_q > 0 and ", u32 q_rows" or "")) {
    const int lane = threadIdx.x % 32, first_k = $(plan.score_key)(at, n) + 2 * (lane % 4);
@ if reads_row then
    const int first = opaque(at.q_first) + warp_row() + lane / 4;
@ end
@ scalars("")
#pragma unroll
    for (int m = 0; m < m_atoms; ++m)
#pragma unroll
        for (int r = 0; r < 2; ++r) {
@ row_place()
@ for j, array in ipairs(staged_q) do
            const u32 $(array.name)_element = ld_shared_u32(q_rows + 4 * ($(j - 1) * block_m + warp_row() + 16 * m + 8 * r + lane / 4));
            const auto $(array.name)_at = [&](const Params &, auto...) { return $(array.type == "float" and "__uint_as_float" or "int")($(array.name)_element); };
@ end
@ include("piece/row_bounds.cu")
            const int begin = lane_count(k_min - 1 - first_k), end = lane_count(max(k_max, -1) - first_k);
#pragma unroll
            for (int from = 0; from < 2 * s_atoms; from += 32) { // a word has as many
                const int start = max(begin - from, 0);
                const u32 seen = bit_mask(start, max(end - from - start, 0));
#pragma unroll
                for (int i = from; i < min(from + 32, 2 * s_atoms); ++i)
                    if (!(seen >> (i - from) & 1)) s[m][i / 2][2 * r + i % 2] = NEG_INF;
            }
        }
}
