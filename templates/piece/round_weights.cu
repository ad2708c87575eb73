// Weights of 8 bits without an exponential: read as a number, e4m3's bits count eighths of a binade from 2^-7 on, so that what is
// nearest to 8 (log2 p + 7) is p's logarithm rounded. Within a binade the bits run straight where the logarithm bends, by 0.086 of a
// binade at most; less the mean of that, which row sums would show, a weight is off by up to 8 % (docs/e4m3.md). Halves count in 2^-24
// up to where they are normal, and on with the same bits: a conversion to a half rounds, and what is negative becomes zero.
constexpr float bits_unit = 0x1p-21f; // 8 of 2^-24 a binade
constexpr float bits_bend = 0.0571f;
constexpr u32 most_bits = 126; // of 448; above it is NaN

// The weights of a tile, straight from its scores. Returns the largest bits of a lane's, in two halves.
__device__ __forceinline__ u32 round_weights(u32 (&weights)[p_steps][4], const float (&s)[m_atoms][s_atoms][4], const u64 (&m_scaled)[m_atoms],
                                             float scale_log2) {
    const float factor = scale_log2 * bits_unit;
    float scaled[2];
    unpair_f32(scaled[0], scaled[1], m_scaled[0]);
    u32 most = 0;
#pragma unroll
    for (int j = 0; j < s_atoms / 2; ++j)
#pragma unroll
        for (int r = 0; r < 2; ++r) { // rows g and g + 8, of 16 keys
            u32 pair[2];
#pragma unroll
            for (int n = 0; n < 2; ++n) {
                const float *score = &s[0][2 * j + n][2 * r];
                pair[n] = pack_positive_fp16(fmaf(score[0], factor, scaled[r]), fmaf(score[1], factor, scaled[r]));
            }
            most = max_u16x2(max_u16x2(most, pair[0]), pair[1]);
            weights[j / 2][j % 2 * 2 + r] = byte_permute(pair[0], pair[1], 0x6420);
        }
    return most;
}

__device__ __forceinline__ bool beyond_range(u32 most) { return max(most & 0xffff, most >> 16) > most_bits; }

// Takes the sums out of P V's last columns, those of ones, of which a lane has two: tensor cores add 8 bits with 13 bits of the largest,
// in which a long row's sum would lose what it grows by.
__device__ __forceinline__ void take_sums(float (&l_i)[m_atoms][2], float (&o)[m_atoms][o_atoms][4]) {
    float (&sums)[4] = o[0][o_atoms - 1];
    l_i[0][0] += sums[0], l_i[0][1] += sums[2];
    clear_f32(sums[0]);
    clear_f32(sums[2]);
}
