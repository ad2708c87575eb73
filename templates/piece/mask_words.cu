// Sets the scores of unseen pairs of tile n to -inf, of a mask that says so in words of 32 keys: a lane has eight of a word's keys in
// each of its rows, as bits 0, 1, 8, 9, 16, ... behind its own shift.
__device__ __forceinline__ u32 bits_to(int last) { return last < 0 ? 0 : 0xffffffffu >> (31 - min(last, 31)); }

__device__ __forceinline__ void mask_tile(float (&s)[m_atoms][s_atoms][4], int n, const Params &p, const Where &at) {
    constexpr int words = block_n / 32;
    const int lane = opaque(int(threadIdx.x)) % 32;
@ if reads_row then
    const int first = opaque(at.q_first) + warp_row() + lane / 4;
@ end
@ scalars("")
    u32 seen[m_atoms][2][words]; // all of them are on their way before one is looked at
#pragma unroll
    for (int m = 0; m < m_atoms; ++m)
#pragma unroll
        for (int r = 0; r < 2; ++r) {
@ row_place()
#pragma unroll
            for (int w = 0; w < words; ++w) {
                const int word = n * words + w;
                seen[m][r][w] = u32($(word_text));
            }
        }
#pragma unroll
    for (int m = 0; m < m_atoms; ++m)
#pragma unroll
        for (int r = 0; r < 2; ++r) {
@ if #mask.upper_at + #mask.lower_at > 0 then
@   row_place()
@ end
            int k_max = at.seqlen_k - 1;
@ for _, bound in ipairs(mask.upper_at) do
            k_max = min(k_max, $(bound));
@ end
@ if #mask.lower_at > 0 then
            int k_min = 0;
@   for _, bound in ipairs(mask.lower_at) do
            k_min = max(k_min, $(bound));
@   end
@ end
#pragma unroll
            for (int w = 0; w < words; ++w) {
                const int first_k = own_key(at, n) + 32 * w;
                const u32 bits = (seen[m][r][w] & bits_to(k_max - first_k)$(#mask.lower_at > 0 and " & ~bits_to(k_min - 1 - first_k)" or "")) >> 2 * (lane % 4);
#pragma unroll
                for (int i = 0; i < 8; ++i)
                    if (!(bits >> (8 * (i / 2) + i % 2) & 1)) s[m][4 * w + i / 2][2 * r + i % 2] = NEG_INF;
            }
        }
}
