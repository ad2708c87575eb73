// Which attention weights are dropped: a function of (seed, offset, batch, head, query i, key j) alone; docs/dropout.md.
//
// One random word serves (i, j), (i + 8, j), (i, j + 8) and (i + 8, j + 8), a byte each. Lane = 4 g + t holds all four of
// them, for two words, in a 16 x 16 block of accumulators: rows g and g + 8, columns 2t, 2t + 1, 2t + 8 and 2t + 9, whether
// the rows are queries (S) or keys (S transposed). So both passes use every byte they compute, on any tile of 16s.

// Philox4x32 (Salmon et al. 2011): x is the counter and becomes the result.
template <int ROUNDS> __device__ __forceinline__ void philox(u32 (&x)[4], u32 key_0, u32 key_1) {
#pragma unroll
    for (int round = 0; round < ROUNDS; ++round) {
        const u32 p_hi = __umulhi(x[0], 0xd2511f53u), p_lo = x[0] * 0xd2511f53u;
        const u32 q_hi = __umulhi(x[2], 0xcd9e8d57u), q_lo = x[2] * 0xcd9e8d57u;
        x[0] = q_hi ^ x[1] ^ key_0;
        x[1] = q_lo;
        x[2] = p_hi ^ x[3] ^ key_1;
        x[3] = p_lo;
        key_0 += 0x9e3779b9u;
        key_1 += 0xbb67ae85u;
    }
}

// The key of one (batch, head).
__device__ __forceinline__ uint4 dropout_key(u64 seed, u64 offset, u32 batch, u32 head) {
    u32 x[4] = {u32(offset), u32(offset >> 32), batch, head};
    philox<10>(x, u32(seed), u32(seed >> 32));
    return make_uint4(x[0], x[1], x[2], x[3]);
}

// d = 256 p values of a byte are dropped. The rarer outcome, of min(d, 256 - d) values, has the upper values.
struct DropoutRate {
    u32 rare;   // min(d, 256 - d) in each byte
    u32 invert; // all ones when the rarer outcome is to drop: keep = rarer ^ invert
};

// The highest bit of each byte says whether that byte is in the upper `rare` values; the other bits say nothing.
__device__ __forceinline__ u32 dropout_signs(u32 bytes, DropoutRate rate) {
    return ((bytes & 0x7f7f7f7fu) + rate.rare) & bytes;
}

// Byte n of a word of the lane serves accumulator half n % 2 of its rows (g, g + 8) and half n / 2 of its columns, or,
// where the rows are keys, the other way round.
template <bool ROWS_ARE_KEYS> __device__ constexpr int dropout_byte(int row_half, int col_half) {
    return ROWS_ARE_KEYS ? col_half + 2 * row_half : row_half + 2 * col_half;
}

// Drops from operand A of m16n8k16, the packed weights of a 16 x 16 block: a[n] has columns 2t and 2t + 1 of row half n % 2 and
// column half n / 2. w: the signs of the words of columns 2t and 2t + 1.
template <bool ROWS_ARE_KEYS>
__device__ __forceinline__ void dropout_packed(u32 (&a)[4], const u32 (&w)[2], DropoutRate rate) {
#pragma unroll
    for (int n = 0; n < 4; ++n) {
        const int byte = dropout_byte<ROWS_ARE_KEYS>(n % 2, n / 2);
        a[n] &= byte_permute(w[0], w[1], 0xcc88u + 0x1111u * byte) ^ rate.invert;
    }
}

// Drops from the accumulators of the block's two atoms of 8 columns: c[2 r + e] has column 2t + e of row half r.
template <bool ROWS_ARE_KEYS>
__device__ __forceinline__ void dropout_float(float (&left)[4], float (&right)[4], const u32 (&w)[2], DropoutRate rate) {
#pragma unroll
    for (int n = 0; n < 8; ++n) {
        const int byte = dropout_byte<ROWS_ARE_KEYS>(n / 2 % 2, n / 4);
        float &c = n < 4 ? left[n % 4] : right[n % 4];
        c = __uint_as_float(__float_as_uint(c) & (byte_permute(w[n % 2], 0, 0x8888u + 0x1111u * byte) ^ rate.invert));
    }
}
