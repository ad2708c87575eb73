// The default generator: two counters, linear in i and j, are mixed by three low-half multiplications; wide ones are
// dear (about seven issue slots each on Hopper). A lane pays one or two additions a word for its counters.
template <bool ROWS_ARE_KEYS> struct DropoutWords {
    static constexpr u32 a_i = 0xbb67b0cbu, a_j = 0x6a09e667u, b_i = 0xa54ff6b9u, b_j = 0x3c6ef373u;
    static constexpr u32 a_row = ROWS_ARE_KEYS ? a_j : a_i, a_col = ROWS_ARE_KEYS ? a_i : a_j;
    static constexpr u32 b_row = ROWS_ARE_KEYS ? b_j : b_i, b_col = ROWS_ARE_KEYS ? b_i : b_j;
    u32 a, b, c;

    // (row, col): the lane's block 0, 0, multiples of 16.
    __device__ __forceinline__ DropoutWords(uint4 key, u32 row, u32 col) {
        const u32 g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
        a = key.x + (row + g) * a_row + (col + 2 * t) * a_col;
        b = (key.y | 1) + (row + (g & 6)) * b_row + (col + 2 * t) * b_col; // shared by 2 x 2 words: i and j without bit 0
        c = key.z;
    }

    __device__ __forceinline__ void move(int rows, int cols) {
        a += rows * a_row + cols * a_col;
        b += rows * b_row + cols * b_col;
    }

    // w[n']: the signs of the words of columns 2t and 2t + 1 of block (m, n + n').
    __device__ __forceinline__ void signs(u32 (&w)[2][2], int m, int n, DropoutRate rate) const {
#pragma unroll
        for (int k = 0; k < 4; ++k) {
            const u32 x = a + 16 * m * a_row + (16 * (n + k / 2) + k % 2) * a_col;
            const u32 y = b + 16 * m * b_row + 16 * (n + k / 2) * b_col;
            u32 mixed = x * y + c;
            mixed ^= mixed >> 16;
            const u32 upper = mixed * y + x, lower = mixed * 0x9e3779b1u + c;
            w[k / 2][k % 2] = dropout_signs(byte_permute(lower, upper, 0x7632), rate); // the better halves
        }
    }
};
