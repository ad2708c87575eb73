@ local parted = plan.parted
// Products of float32 matrices on the tensor cores, with the functions of gemm.cu. Three bf16 carry the 24 bits of a float, x = x0 +
// x1 + x2, and a b is the sum of the six products of parts that are above 2^-24 of it. The tensor cores truncate their sums, which
// over many steps would pull every result towards zero; so sums leave them after each step of 16. docs/precision.md has the errors.
//
// A __syncwarp heads each step, and every four columns of atoms where they are many, since ptxas moves no load across it: it would
// fetch so far ahead that registers spill.

@ if not parted then
@   include("piece/float_parts.cu")

@ end
// c += part i of a times part j of b.
__device__ __forceinline__ void mma_parts(float (&c)[4], const Split<4> &a, int i, const Split<2> &b, int j) {
    mma_m16n8k16_parts(c, a.part[i], b.part[j][0], b.part[j][1]);
}

// c += all products of parts but the largest, the smallest first. TRANSPOSED: becomes, bit by bit, the transpose of what it is without,
// of B A^T.
template <bool TRANSPOSED> __device__ __forceinline__ void mma_low(float (&c)[4], const Split<4> &a, const Split<2> &b) {
    constexpr int t = TRANSPOSED;
    mma_parts(c, a, 2 - 2 * t, b, 2 * t);
    mma_parts(c, a, 2 * t, b, 2 - 2 * t);
    mma_parts(c, a, 1, b, 1);
    mma_parts(c, a, 1 - t, b, t);
    mma_parts(c, a, t, b, 1 - t);
}

__device__ __forceinline__ void mma(float (&c)[4], const Split<4> &a, const Split<2> &b) {
    float step[4] = {};
    mma_low<false>(step, a, b);
    mma_parts(step, a, 0, b, 0);
#pragma unroll
    for (int e = 0; e < 4; ++e) c[e] += step[e];
}

@ include("piece/fill.cu")

@ if not parted then
// An 8x8 matrix of ldmatrix has 8 rows of 4 floats, of which a lane gets one: in row g, column t.
@ end
// Operand A: rows row + 16 m .. + 15 of a tile, columns 16 j .. + 15.
template <int ROWS, int COLS> __device__ __forceinline__ void load_a(Split<4> &a, u32 tile, int row, int m, int j) {
    const int lane = threadIdx.x % 32;
@ if parted then
    const u32 from = tile + fragment_offset<ROWS, COLS / 2>(16 * m, row + lane % 16, j, lane / 16);
#pragma unroll
    for (int n = 0; n < 3; ++n) ldmatrix_x4(a.part[n], from + n * part_bytes<ROWS, COLS>);
@ else
#pragma unroll
    for (int i = 0; i < 2; ++i) {
        u32 x[4]; // 16 rows x 8 columns
        ldmatrix_x4(x, tile + fragment_offset<ROWS, COLS>(16 * m, row + lane % 16, 2 * j + i, lane / 16));
        a.set(2 * i, x[0], x[2]);
        a.set(2 * i + 1, x[1], x[3]);
    }
@ end
}

// Operand B of two atoms: rows row_0 + row .. + 15 of a tile, columns 16 j .. + 15.
template <int ROWS, int COLS> __device__ __forceinline__ void load_b(Split<2> &first, Split<2> &second, u32 tile, int row_0, int row, int j) {
    const int lane = threadIdx.x % 32;
@ if parted then
    const u32 from = tile + fragment_offset<ROWS, COLS / 2>(row_0, row + lane % 8 + lane / 16 * 8, j, lane / 8 % 2);
#pragma unroll
    for (int n = 0; n < 3; ++n) {
        u32 x[4];
        ldmatrix_x4(x, from + n * part_bytes<ROWS, COLS>);
        first.part[n][0] = x[0], first.part[n][1] = x[1];
        second.part[n][0] = x[2], second.part[n][1] = x[3];
    }
@ else
#pragma unroll
    for (int i = 0; i < 2; ++i) {
        u32 x[4]; // 16 rows x 8 columns
        ldmatrix_x4(x, tile + fragment_offset<ROWS, COLS>(row_0, row + lane % 8 + lane / 16 * 8, 2 * j + i, lane / 8 % 2));
        first.set(i, x[0], x[1]);
        second.set(i, x[2], x[3]);
    }
@ end
}

// Columns from 16 j on, STEPS times 16, of acc + low += A B^T; A: the 16 M rows from `row` on of a tile of A_ROWS, B: the 8 N rows from
// row_b on of a tile of B_ROWS. What acc loses goes to low. FRESH: acc was 0.
template <int A_ROWS, int B_ROWS, int COLS, bool TRANSPOSED, bool FRESH, int STEPS, int M, int N>
__device__ __forceinline__ void gemm_nt_step(float (&acc)[M][N][4], float (&low)[M][N][4], u32 tile_a, int row, u32 tile_b, int row_b, int j) {
    __syncwarp();
    Split<4> a[M][STEPS];
#pragma unroll
    for (int m = 0; m < M; ++m)
#pragma unroll
        for (int t = 0; t < STEPS; ++t) load_a<A_ROWS, COLS>(a[m][t], tile_a, row, m, j + t);
#pragma unroll
    for (int n = 0; n < N; n += 2) {
        Split<2> b[2][STEPS]; // of two atoms
#pragma unroll
        for (int t = 0; t < STEPS; ++t) load_b<B_ROWS, COLS>(b[0][t], b[1][t], tile_b, 8 * n, row_b, j + t);
#pragma unroll
        for (int m = 0; m < M; ++m)
#pragma unroll
            for (int i = 0; i < 2; ++i) {
                float(&c)[4] = acc[m][n + i], (&c_low)[4] = low[m][n + i];
                float step[4] = {};
#pragma unroll
                for (int t = 0; t < STEPS; ++t) {
                    mma_low<TRANSPOSED>(c_low, a[m][t], b[i][t]);
                    mma_parts(step, a[m][t], 0, b[i][t], 0);
                }
#pragma unroll
                for (int e = 0; e < 4; ++e) {
                    const float sum = FRESH ? step[e] : c[e] + step[e];
                    if (!FRESH) c_low[e] += step[e] - (sum - c[e]);
                    c[e] = sum;
                }
            }
    }
}

// acc + low += A B^T, nearly exactly. FRESH: acc was 0. The steps of whole panels differ in constants only.
template <int A_ROWS, int B_ROWS, int COLS, bool TRANSPOSED = false, bool FRESH = false, int M, int N>
__device__ __forceinline__ void gemm_nt(float (&acc)[M][N][4], float (&low)[M][N][4], u32 tile_a, int row, u32 tile_b, int row_b = 0) {
    constexpr int steps = COLS <= 64 ? 2 : 1, whole = COLS / 32 * 2 / steps; // 1 where registers are few
    fill(low, 0.0f);
    if (FRESH && whole > 0) gemm_nt_step<A_ROWS, B_ROWS, COLS, TRANSPOSED, true, steps>(acc, low, tile_a, row, tile_b, row_b, 0);
#pragma unroll 1
    for (int j = FRESH; j < whole; ++j) gemm_nt_step<A_ROWS, B_ROWS, COLS, TRANSPOSED, false, steps>(acc, low, tile_a, row, tile_b, row_b, steps * j);
    if (COLS % 32 != 0) gemm_nt_step<A_ROWS, B_ROWS, COLS, TRANSPOSED, FRESH && whole == 0, 1>(acc, low, tile_a, row, tile_b, row_b, steps * whole);
}

// acc += A B^T, rounded hardly more than once.
template <int A_ROWS, int B_ROWS, int COLS, bool TRANSPOSED = false, bool FRESH = false, int M, int N>
__device__ __forceinline__ void gemm_nt(float (&acc)[M][N][4], u32 tile_a, int row, u32 tile_b, int row_b = 0) {
    float low[M][N][4];
    gemm_nt<A_ROWS, B_ROWS, COLS, TRANSPOSED, FRESH>(acc, low, tile_a, row, tile_b, row_b);
#pragma unroll
    for (int m = 0; m < M; ++m)
#pragma unroll
        for (int n = 0; n < N; ++n)
#pragma unroll
            for (int e = 0; e < 4; ++e) acc[m][n][e] += low[m][n][e];
}

@ if not parted then
// The element of a tile in row row_0 + 2 t + odd, column 8 c + g; row_0 (a multiple of 8) and odd are known at compile time. The
// 32 elements lie in different banks where the panel is 32 columns wide.
template <int ROWS, int COLS> __device__ __forceinline__ u32 load_column(u32 tile, int row_0, int odd, int c) {
    const int lane = threadIdx.x % 32;
    return ld_shared_u32(tile + fragment_offset<ROWS, COLS>(row_0, lane % 4 * 2 + odd, c, lane / 16) + lane / 4 % 4 * 4);
}

@ end
// Rows 16 j to 16 j + 15 of acc += A B; B: columns of a tile of B_ROWS x COLS, from atom col_b on.
// SHORT: the last of the warps that share the columns may find less than N atoms.
template <int B_ROWS, int COLS, bool SHORT, int M, int N>
__device__ __forceinline__ void gemm_nn_step(float (&acc)[M][N][4], const Split<4> (&a)[M], u32 tile_b, int col_b, int j) {
@ if parted then
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int n = 0; n < N; n += 2) {
        if (SHORT && col_b + n >= COLS / 8) continue;
        if (n > 0 && n % 4 == 0) __syncwarp();
        Split<2> b[2];
        const u32 from = tile_b + fragment_offset<B_ROWS, COLS / 2>(16 * j, lane % 16, (col_b + n) / 2, lane / 16);
#pragma unroll
        for (int part = 0; part < 3; ++part) {
            u32 x[4]; // 16 rows x 16 columns: two atoms
            ldmatrix_x4_trans(x, from + part * part_bytes<B_ROWS, COLS>);
            b[0].part[part][0] = x[0], b[0].part[part][1] = x[1];
            b[1].part[part][0] = x[2], b[1].part[part][1] = x[3];
        }
#pragma unroll
        for (int m = 0; m < M; ++m)
#pragma unroll
            for (int i = 0; i < 2; ++i) mma(acc[m][n + i], a[m], b[i]);
    }
@ else
#pragma unroll
    for (int n = 0; n < N; ++n) {
        if (SHORT && col_b + n >= COLS / 8) continue;
        if (n > 0 && n % 4 == 0) __syncwarp();
        Split<2> b;
#pragma unroll
        for (int half = 0; half < 2; ++half)
            b.set(half, load_column<B_ROWS, COLS>(tile_b, 16 * j + 8 * half, 0, col_b + n),
                  load_column<B_ROWS, COLS>(tile_b, 16 * j + 8 * half, 1, col_b + n));
#pragma unroll
        for (int m = 0; m < M; ++m) mma(acc[m][n], a[m], b);
    }
@ end
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

@ local shares = problem.op == "bwd" and problem.slices > 1 -- B has further columns; acc those from atom col_b on
// acc += P B. A lane's accumulators of P are what it needs of operand A, so that P never leaves the registers.
template <$(shares and "int COLS, bool SHORT, " or "")int M, int N, int K, class Edit = Unedited>
__device__ __forceinline__ void gemm_pn(float (&acc)[M][N][4], const float (&p)[M][K][4], u32 tile_b,$(shares and " int col_b," or "")
                                        const Edit &edit = Edit()) {
#pragma unroll
    for (int j = 0; j < K / 2; ++j) {
        __syncwarp();
        Split<4> a[M];
#pragma unroll
        for (int m = 0; m < M; ++m) {
            float block[2][4];
            take_block(block, p[m], j);
            edit(block, m, j);
#pragma unroll
            for (int i = 0; i < 4; ++i) a[m].set(i, block[i / 2][i % 2 * 2], block[i / 2][i % 2 * 2 + 1]);
        }
        gemm_nn_step<8 * K, $(shares and "COLS, SHORT" or "8 * N, false")>(acc, a, tile_b, $(shares and "col_b" or "0"), j);
    }
}
@ if problem.op == "bwd" then

// How far the two loops that follow are unrolled: beside the accumulators of dK and dV of wide heads there is room for one step.
template <int COLS> constexpr int unrolled = COLS <= 160 ? 2 : 1;

// acc += A B; A: the 16 M rows from `row` on of a tile of A_ROWS x B_ROWS.
template <int A_ROWS, int B_ROWS, int COLS, bool SHORT, int M, int N>
__device__ __forceinline__ void gemm_nn(float (&acc)[M][N][4], u32 tile_a, int row, u32 tile_b, int col_b) {
@   if not parted then
    const int lane = threadIdx.x % 32;
@   end
#pragma unroll unrolled<COLS>
    for (int j = 0; j < B_ROWS / 16; ++j) {
        __syncwarp();
        Split<4> a[M];
#pragma unroll
        for (int m = 0; m < M; ++m)
@   if parted then
            load_a<A_ROWS, B_ROWS>(a[m], tile_a, row, m, j);
@   else
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                const float2 x = ld_shared_f32x2(tile_a + fragment_offset<A_ROWS, B_ROWS>(16 * m + i % 2 * 8, row + lane / 4, 2 * j + i / 2, lane % 4 / 2) +
                                                 lane % 2 * 8);
                a[m].set(i, x.x, x.y);
            }
@   end
        gemm_nn_step<B_ROWS, COLS, SHORT>(acc, a, tile_b, col_b, j);
    }
}

// acc += A^T B; A: the 16 M columns from `col` on of a tile of B_ROWS x A_COLS.
template <int A_COLS, int B_ROWS, int COLS, bool SHORT, int M, int N>
__device__ __forceinline__ void gemm_tn(float (&acc)[M][N][4], u32 tile_a, int col, u32 tile_b, int col_b) {
@   if parted then
    const int lane = threadIdx.x % 32;
@   end
#pragma unroll unrolled<COLS>
    for (int j = 0; j < B_ROWS / 16; ++j) {
        __syncwarp();
        Split<4> a[M];
#pragma unroll
        for (int m = 0; m < M; ++m)
@   if parted then
#pragma unroll
            for (int n = 0; n < 3; ++n)
                ldmatrix_x4_trans(a[m].part[n], tile_a + n * part_bytes<B_ROWS, A_COLS> +
                                                    fragment_offset<B_ROWS, A_COLS / 2>(16 * j, lane / 16 * 8 + lane % 8, col / 16 + m, lane / 8 % 2));
@   else
#pragma unroll
            for (int i = 0; i < 4; ++i)
                a[m].set(i, load_column<B_ROWS, A_COLS>(tile_a, 16 * j + i / 2 * 8, 0, col / 8 + 2 * m + i % 2),
                         load_column<B_ROWS, A_COLS>(tile_a, 16 * j + i / 2 * 8, 1, col / 8 + 2 * m + i % 2));
@   end
        gemm_nn_step<B_ROWS, COLS, SHORT>(acc, a, tile_b, col_b, j);
    }
}
@ end
