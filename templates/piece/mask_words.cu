@ -- A mask that comes as words of 32 keys: mask.words is which.
// The words of the mask for tile n and the lane's rows.
struct MaskWords {
    static constexpr int num_words = $(plan.score_block) / 32;
    u32 seen[m_atoms][2][num_words];

    __device__ __forceinline__ MaskWords() {}
    __device__ __forceinline__ MaskWords(int n, const Params &p, const Where &at) { read(n, p, at); }
    __device__ __forceinline__ void read(int n, const Params &p, const Where &at) {
@ if reads_row then
        const int first = opaque(at.q_first) + warp_row() + lane_anew() / 4;
@ end
@ scalars("")
#pragma unroll
        for (int m = 0; m < m_atoms; ++m)
#pragma unroll
            for (int r = 0; r < 2; ++r) {
@ row_place()
#pragma unroll
                for (int w = 0; w < num_words; ++w) {
                    const int word = n * num_words + w;
                    seen[m][r][w] = u32($(mask.words));
                }
            }
    }
};

// Sets the scores of unseen pairs of tile n to -inf. Of a word's keys a lane has eight in each of its rows: bits 0, 1, 8, 9, 16, ...
// behind a shift of its own.
__device__ __forceinline__ void mask_tile(float (&s)[m_atoms][s_atoms][4], int n, const Params &p, const Where &at, const MaskWords &words) {
    const int lane = lane_anew();
@ local bounds = #mask.upper_at + #mask.lower_at > 0
@ if bounds then
@   if reads_row then
    const int first = opaque(at.q_first) + warp_row() + lane / 4;
@   end
@   scalars("")
@ end
#pragma unroll
    for (int m = 0; m < m_atoms; ++m)
#pragma unroll
        for (int r = 0; r < 2; ++r) {
@ if bounds then
@   row_place()
@ end
@ include("piece/row_bounds.cu")
#pragma unroll
            for (int w = 0; w < words.num_words; ++w) {
                const int first_k = $(plan.score_key)(at, n) + 32 * w;
                const u32 seen = (words.seen[m][r][w] & bits_to(max(k_max, -1) - first_k)$(#mask.lower_at > 0 and " & ~bits_to(k_min - 1 - first_k)" or "")) >> 2 * (lane % 4);
#pragma unroll
                for (int i = 0; i < 8; ++i)
                    if (!(seen >> (8 * (i / 2) + i % 2) & 1)) s[m][4 * w + i / 2][2 * r + i % 2] = NEG_INF;
            }
        }
}
