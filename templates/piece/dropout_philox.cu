// The conservative generator: Philox4x32-7. A call gives the four words of 2 x 2 neighbours, of which a lane holds two; its
// partner, the lane with the other row of them, holds the others. So each calls for one of two blocks of 16 columns.
template <bool ROWS_ARE_KEYS> struct DropoutWords {
    uint4 key;
    u32 row, col;
    u32 odd; // the lane's row has bit 0

    // (row, col): the lane's block 0, 0, multiples of 16.
    __device__ __forceinline__ DropoutWords(uint4 key, u32 row, u32 col)
        : key(key), row(row + (threadIdx.x % 32 / 4 & 6)), col(col + threadIdx.x % 4 * 2), odd(threadIdx.x / 4 % 2) {}

    __device__ __forceinline__ void move(int rows, int cols) {
        row += rows;
        col += cols;
    }

    // w[n']: the signs of the words of columns 2t and 2t + 1 of block (m, n + n'); the whole warp calls it.
    __device__ __forceinline__ void signs(u32 (&w)[2][2], int m, int n, DropoutRate rate) const {
        const u32 block_row = row + 16 * m, block_col = col + 16 * (n + odd);
        u32 x[4] = {ROWS_ARE_KEYS ? block_col : block_row, ROWS_ARE_KEYS ? block_row : block_col, key.z, key.w};
        philox<7>(x, key.x, key.y); // word 2 (i % 2) + j % 2
#pragma unroll
        for (int e = 0; e < 2; ++e) {
            const u32 even_row = x[ROWS_ARE_KEYS ? 2 * e : e], odd_row = x[ROWS_ARE_KEYS ? 2 * e + 1 : 2 + e];
            const u32 own = odd ? odd_row : even_row;
            const u32 other = __shfl_xor_sync(full_warp, odd ? even_row : odd_row, 4);
            w[0][e] = dropout_signs(odd ? other : own, rate);
            w[1][e] = dropout_signs(odd ? own : other, rate);
        }
    }
};
