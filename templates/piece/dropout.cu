// Which attention weights are dropped: a function of (seed, offset, batch, head, query i, key j) alone; docs/dropout.md.
//
// One random word serves (i, j), (i + 8, j), (i, j + 8) and (i + 8, j + 8), a byte each. Lane = 4 g + t holds all four of
// them, for two words, in a 16 x 16 block of accumulators: rows g and g + 8, columns 2t, 2t + 1, 2t + 8 and 2t + 9, whether
// the rows are queries (S) or keys (S transposed). So both passes use every byte they compute, on any tile of 16s.

// The key of one (batch, head): Philox4x32-10 (Salmon et al. 2011).
__device__ __forceinline__ uint4 dropout_key(u64 seed, u64 offset, u32 batch, u32 head) {
    u32 x0 = u32(offset), x1 = u32(offset >> 32), x2 = batch, x3 = head, key_0 = u32(seed), key_1 = u32(seed >> 32);
#pragma unroll
    for (int round = 0; round < 10; ++round) {
        const u32 p_hi = __umulhi(x0, 0xd2511f53u), p_lo = x0 * 0xd2511f53u;
        const u32 q_hi = __umulhi(x2, 0xcd9e8d57u), q_lo = x2 * 0xcd9e8d57u;
        x0 = q_hi ^ x1 ^ key_0;
        x1 = q_lo;
        x2 = p_hi ^ x3 ^ key_1;
        x3 = p_lo;
        key_0 += 0x9e3779b9u;
        key_1 += 0xbb67ae85u;
    }
    return make_uint4(x0, x1, x2, x3);
}

__device__ __forceinline__ uint4 dropout_key(const Params &p, u32 batch, u32 head) {
    u64 seed = p.dropout_seed, offset = p.dropout_offset;
    if (p.dropout_state) {
        seed = p.dropout_state[0];
        offset = p.dropout_state[1];
    }
    return dropout_key(seed, offset, batch, head);
}

// A warp's share of the mask. Two counters, linear in i and j, are mixed by three low-half multiplications: wide ones are dear
// (about seven issue slots each on Hopper). A lane pays one or two additions a word for its counters.
template <bool ROWS_ARE_KEYS> struct Dropout {
    static constexpr u32 a_i = 0xbb67b0cbu, a_j = 0x6a09e667u, b_i = 0xa54ff6b9u, b_j = 0x3c6ef373u;
    static constexpr u32 a_row = ROWS_ARE_KEYS ? a_j : a_i, a_col = ROWS_ARE_KEYS ? a_i : a_j;
    static constexpr u32 b_row = ROWS_ARE_KEYS ? b_j : b_i, b_col = ROWS_ARE_KEYS ? b_i : b_j;
    u32 a, b, c;
    u32 rare, invert; // of params

    // (row, col): the warp's block 0, 0, multiples of 16.
    __device__ __forceinline__ Dropout(const Params &p, u32 batch, u32 head, u32 row, u32 col)
        : Dropout(p, dropout_key(p, batch, head), row, col) {}

    // `key`: of the batch entry and the head.
    __device__ __forceinline__ Dropout(const Params &p, uint4 key, u32 row, u32 col)
        : rare(p.dropout_rare), invert(p.dropout_invert) {
        const u32 g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
        a = key.x + (row + g) * a_row + (col + 2 * t) * a_col;
        b = (key.y | 1) + (row + (g & 6)) * b_row + (col + 2 * t) * b_col; // shared by 2 x 2 words: i and j without bit 0
        c = key.z;
    }

    __device__ __forceinline__ void move(int rows, int cols) {
        a += rows * a_row + cols * a_col;
        b += rows * b_row + cols * b_col;
    }

    // The words of columns 2t and 2t + 1 of block (m, n). The highest bit of each byte says whether it keeps its element; the
    // other bits say nothing. The rarer outcome, of `rare` values of a byte, has the upper ones.
    __device__ __forceinline__ void signs(u32 (&w)[2], int m, int n) const {
#pragma unroll
        for (int e = 0; e < 2; ++e) {
            const u32 x = a + 16 * m * a_row + (16 * n + e) * a_col;
            const u32 y = b + 16 * m * b_row + 16 * n * b_col;
            u32 mixed = x * y + c;
            mixed ^= mixed >> 16;
            const u32 upper = mixed * y + x, lower = mixed * 0x9e3779b1u + c;
            const u32 bytes = byte_permute(lower, upper, 0x7632); // the better halves
            w[e] = (((bytes & 0x7f7f7f7fu) + rare) & bytes) ^ invert;
        }
    }

    // The byte of a word that serves half `row_half` of the rows (g, g + 8) and half `col_half` of the columns.
    static __device__ constexpr int byte(int row_half, int col_half) {
        return ROWS_ARE_KEYS ? col_half + 2 * row_half : row_half + 2 * col_half;
    }

    // Drops from the weights of block (m, n), its left and its right atom.
    __device__ __forceinline__ void operator()(float (&p)[2][4], int m, int n) const {
        u32 w[2];
        signs(w, m, n);
#pragma unroll
        for (int e = 0; e < 8; ++e) p[e / 4][e % 4] = select(w, e / 4, e % 4, p[e / 4][e % 4], 0.0f);
    }

    // Drops from operand A of m16n8k16, the packed weights of block (m, n): p[e] has columns 2t and 2t + 1 of row half e % 2
    // and column half e / 2.
    __device__ __forceinline__ void operator()(u32 (&p)[4], int m, int n) const {
        u32 w[2];
        signs(w, m, n);
#pragma unroll
        for (int e = 0; e < 4; ++e) p[e] &= byte_permute(w[0], w[1], 0xcc88u + 0x1111u * byte(e % 2, e / 2));
    }

    // x where the element is kept, else y: accumulator e of the block's left or right atom, of the signs w.
    static __device__ __forceinline__ float select(const u32 (&w)[2], bool right, int e, float x, float y) {
        const u32 keep = byte_permute(w[e % 2], 0, 0x8888u + 0x1111u * byte(e / 2, right));
        return __uint_as_float((__float_as_uint(x) & keep) | (__float_as_uint(y) & ~keep));
    }
};
