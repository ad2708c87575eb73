// Products of float32 matrices on the tensor cores, with the functions of gemm.cu. Each number is split, x = hi + lo, into tf32
// (11 bits each; the hardware ignores what lies below), and a b = hi hi + hi lo + lo hi. Each step starts from zero and is added
// to the accumulator by an ordinary addition: the tensor cores truncate their sums, which over many steps would pull every
// result towards zero. docs/precision.md has the errors.
//
// A __syncwarp heads each step, and every four columns of atoms where they are many, since ptxas moves no load across it: it would
// fetch so far ahead that registers spill.

// x to the nearest tf32, ties away from zero.
__device__ __forceinline__ void split_tf32(u32 &hi, u32 &lo, u32 x) {
    hi = (x + 0x1000u) & 0xffffe000u;
    lo = __float_as_uint(__uint_as_float(x) - __uint_as_float(hi));
}

// Lane = 4 g + t. Operand A of m16n8k8: rows g and g + 8 at depth t, then both at depth t + 4. Operand B: column g at depths t
// and t + 4. As a sum over the depth has no order, slots t and t + 4 may stand for 2 t and 2 t + 1, in A and B alike.
template <int N> struct Split {
    u32 hi[N], lo[N];
    __device__ __forceinline__ void set(int i, u32 x) { split_tf32(hi[i], lo[i], x); }
};

// TRANSPOSED: c becomes, bit by bit, the transpose of what it is without, of B A^T, since of the two small products the same comes first.
template <bool TRANSPOSED = false> __device__ __forceinline__ void mma(float (&c)[4], const Split<4> &a, const Split<2> &b) {
    float step[4] = {};
    if (TRANSPOSED) mma_m16n8k8_tf32(step, a.hi, b.lo[0], b.lo[1]);
    mma_m16n8k8_tf32(step, a.lo, b.hi[0], b.hi[1]);
    if (!TRANSPOSED) mma_m16n8k8_tf32(step, a.hi, b.lo[0], b.lo[1]);
    mma_m16n8k8_tf32(step, a.hi, b.hi[0], b.hi[1]);
#pragma unroll
    for (int e = 0; e < 4; ++e) c[e] += step[e];
}

// A warp's accumulator: M atoms of 16 rows by N atoms of 8 columns. Lane = 4 g + t holds, in atom (m, n), rows 16 m + g and
// + 8, columns 8 n + 2 t and + 1.
template <int M, int N> __device__ __forceinline__ void fill(float (&acc)[M][N][4], float value) {
#pragma unroll
    for (int m = 0; m < M; ++m)
#pragma unroll
        for (int n = 0; n < N; ++n)
#pragma unroll
            for (int e = 0; e < 4; ++e) acc[m][n][e] = value;
}

// Step j of acc += A B^T; A: the 16 M rows from `row` on of a tile of A_ROWS, B: the 8 N rows from row_b on of a tile of B_ROWS. An
// 8x8 matrix of ldmatrix has 8 rows of 4 floats, a lane's one of which is where m16n8k8 wants it.
template <int A_ROWS, int B_ROWS, int COLS, bool TRANSPOSED, int M, int N>
__device__ __forceinline__ void gemm_nt_step(float (&acc)[M][N][4], u32 tile_a, int row, u32 tile_b, int row_b, int j) {
    const int lane = threadIdx.x % 32;
    __syncwarp();
    Split<4> a[M];
#pragma unroll
    for (int m = 0; m < M; ++m) {
        u32 x[4]; // 16 rows x 8 columns
        ldmatrix_x4(x, tile_a + fragment_offset<A_ROWS, COLS>(16 * m, row + lane % 16, j, lane / 16));
#pragma unroll
        for (int e = 0; e < 4; ++e) a[m].set(e, x[e]);
    }
#pragma unroll
    for (int n = 0; n < N; n += 2) {
        u32 x[4]; // 16 rows x 8 columns: two atoms
        Split<2> b[2];
        ldmatrix_x4(x, tile_b + fragment_offset<B_ROWS, COLS>(8 * n, row_b + lane % 8 + lane / 16 * 8, j, lane / 8 % 2));
#pragma unroll
        for (int e = 0; e < 4; ++e) b[e / 2].set(e % 2, x[e]);
#pragma unroll
        for (int m = 0; m < M; ++m) {
            mma<TRANSPOSED>(acc[m][n], a[m], b[0]);
            mma<TRANSPOSED>(acc[m][n + 1], a[m], b[1]);
        }
    }
}

// acc += A B^T. The steps of whole panels differ in constants only.
template <int A_ROWS, int B_ROWS, int COLS, bool TRANSPOSED = false, int M, int N>
__device__ __forceinline__ void gemm_nt(float (&acc)[M][N][4], u32 tile_a, int row, u32 tile_b, int row_b = 0) {
    constexpr int whole = COLS / 32 * 4, at_a_time = COLS <= 128 ? 2 : 4;
#pragma unroll at_a_time
    for (int j = 0; j < whole; ++j) gemm_nt_step<A_ROWS, B_ROWS, COLS, TRANSPOSED>(acc, tile_a, row, tile_b, row_b, j);
#pragma unroll
    for (int j = whole; j < COLS / 8; ++j) gemm_nt_step<A_ROWS, B_ROWS, COLS, TRANSPOSED>(acc, tile_a, row, tile_b, row_b, j);
}

// The element of a tile in row row_0 + 2 t + odd, column 8 c + g; row_0 (a multiple of 8) and odd are known at compile time. The
// 32 elements lie in different banks where the panel is 32 columns wide.
template <int ROWS, int COLS> __device__ __forceinline__ u32 load_column(u32 tile, int row_0, int odd, int c) {
    const int lane = threadIdx.x % 32;
    return ld_shared_u32(tile + fragment_offset<ROWS, COLS>(row_0, lane % 4 * 2 + odd, c, lane / 16) + lane / 4 % 4 * 4);
}

// Rows 8 j to 8 j + 7 of acc += A B; B: columns of a tile of B_ROWS x COLS, from atom col_b on; depths 2 t and 2 t + 1.
// SHORT: the last of the warps that share the columns may find less than N atoms.
template <int B_ROWS, int COLS, bool SHORT, int M, int N>
__device__ __forceinline__ void gemm_nn_step(float (&acc)[M][N][4], const Split<4> (&a)[M], u32 tile_b, int col_b, int j) {
#pragma unroll
    for (int n = 0; n < N; ++n) {
        if (SHORT && col_b + n >= COLS / 8) continue;
        if (n > 0 && n % 4 == 0) __syncwarp();
        Split<2> b;
        b.set(0, load_column<B_ROWS, COLS>(tile_b, 8 * j, 0, col_b + n));
        b.set(1, load_column<B_ROWS, COLS>(tile_b, 8 * j, 1, col_b + n));
#pragma unroll
        for (int m = 0; m < M; ++m) mma(acc[m][n], a[m], b);
    }
}

// Block j of a row of accumulators, 16 x 16: two atoms.
template <int K> __device__ __forceinline__ void take_block(float (&block)[2][4], const float (&p)[K][4], int j) {
#pragma unroll
    for (int e = 0; e < 8; ++e) block[e / 4][e % 4] = p[2 * j + e / 4][e % 4];
}

// What happens to a block on its way: edit(block, m, j) of block (m, j).
struct Unedited {
    __device__ __forceinline__ void operator()(float (&)[2][4], int, int) const {}
};

// acc += P B. A lane's accumulators of P are what it needs of operand A, so that P never leaves the registers.
template <int M, int N, int K, class Edit = Unedited>
__device__ __forceinline__ void gemm_pn(float (&acc)[M][N][4], const float (&p)[M][K][4], u32 tile_b,
                                        const Edit &edit = Edit()) {
#pragma unroll
    for (int j = 0; j < K / 2; ++j) {
        __syncwarp();
        Split<4> a[2][M];
#pragma unroll
        for (int m = 0; m < M; ++m) {
            float block[2][4];
            take_block(block, p[m], j);
            edit(block, m, j);
#pragma unroll
            for (int e = 0; e < 8; ++e) a[e / 4][m].set(e % 2 * 2 + e % 4 / 2, __float_as_uint(block[e / 4][e % 4]));
        }
        gemm_nn_step<8 * K, 8 * N, false>(acc, a[0], tile_b, 0, 2 * j);
        gemm_nn_step<8 * K, 8 * N, false>(acc, a[1], tile_b, 0, 2 * j + 1);
    }
}
@ if problem.op == "bwd" then

// acc += A B; A: the 16 M rows from `row` on of a tile of A_ROWS x B_ROWS.
template <int A_ROWS, int B_ROWS, int COLS, bool SHORT, int M, int N>
__device__ __forceinline__ void gemm_nn(float (&acc)[M][N][4], u32 tile_a, int row, u32 tile_b, int col_b) {
    const int lane = threadIdx.x % 32;
#pragma unroll 4
    for (int j = 0; j < B_ROWS / 8; ++j) {
        __syncwarp();
        Split<4> a[M];
#pragma unroll
        for (int m = 0; m < M; ++m)
#pragma unroll
            for (int r = 0; r < 2; ++r) {
                const float2 x = ld_shared_f32x2(tile_a + fragment_offset<A_ROWS, B_ROWS>(16 * m + 8 * r, row + lane / 4, j, lane % 4 / 2) +
                                                 lane % 2 * 8);
                a[m].set(r, __float_as_uint(x.x));
                a[m].set(r + 2, __float_as_uint(x.y));
            }
        gemm_nn_step<B_ROWS, COLS, SHORT>(acc, a, tile_b, col_b, j);
    }
}

// acc += A^T B; A: the 16 M columns from `col` on of a tile of B_ROWS x A_COLS.
template <int A_COLS, int B_ROWS, int COLS, bool SHORT, int M, int N>
__device__ __forceinline__ void gemm_tn(float (&acc)[M][N][4], u32 tile_a, int col, u32 tile_b, int col_b) {
#pragma unroll 4
    for (int j = 0; j < B_ROWS / 8; ++j) {
        __syncwarp();
        Split<4> a[M];
#pragma unroll
        for (int m = 0; m < M; ++m)
#pragma unroll
            for (int e = 0; e < 4; ++e)
                a[m].set(e, load_column<B_ROWS, A_COLS>(tile_a, 8 * j, e / 2, col / 8 + 2 * m + e % 2));
        gemm_nn_step<B_ROWS, COLS, SHORT>(acc, a, tile_b, col_b, j);
    }
}
@ end
