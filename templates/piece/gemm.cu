@ include("piece/fragment.cu")

__device__ __forceinline__ void mma(float (&c)[4], const u32 (&a)[4], u32 b0, u32 b1) {
@ if arch.mma_k == 16 then
    mma_m16n8k16_$(plan.operands)(c, a, b0, b1);
@ else
    mma_m16n8k8_$(plan.operands)(c, a[0], a[1], b0);
    mma_m16n8k8_$(plan.operands)(c, a[2], a[3], b1);
@ end
}

// Step j of acc += A B^T; B: the 8 N rows from row_b on of a tile of B_ROWS.
template <int B_ROWS, int COLS, int M, int N>
__device__ __forceinline__ void gemm_nt_step(float (&acc)[M][N][4], const u32 (&a)[M][4], u32 tile_b, int row_b, int j) {
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int n = 0; n < N; n += 2) {
        u32 b[4]; // 16 rows x 16 columns: two atoms
        ldmatrix_x4(b, tile_b + fragment_offset<B_ROWS, COLS>(8 * n, row_b + lane % 8 + lane / 16 * 8, j, lane / 8 % 2));
#pragma unroll
        for (int m = 0; m < M; ++m) {
            mma(acc[m][n], a[m], b[0], b[1]);
            mma(acc[m][n + 1], a[m], b[2], b[3]);
        }
    }
}

// acc += A B^T; A: the 16 M rows from `row` on of a tile of A_ROWS.
@ if problem.op == "bwd" then
// Unrolled as far as registers allow: each turn of a loop would wait for its first fragments.
@ else
// Unrolled by whole panels: their steps differ in constants only, and fragments are not fetched too far ahead.
@ end
template <int A_ROWS, int B_ROWS, int COLS, int M, int N>
__device__ __forceinline__ void gemm_nt(float (&acc)[M][N][4], u32 tile_a, int row, u32 tile_b, int row_b = 0) {
    constexpr int steps = COLS % 64 == 0$(problem.op == "bwd" and " && COLS > 128" or "") ? 4 : COLS / 16;
#pragma unroll steps
    for (int j = 0; j < COLS / 16; ++j) {
        u32 a[M][4];
#pragma unroll
        for (int m = 0; m < M; ++m) load_a<A_ROWS, COLS>(a[m], tile_a, row, m, j);
        gemm_nt_step<B_ROWS, COLS>(acc, a, tile_b, row_b, j);
    }
}

// The same with A in registers, fetched by load_a.
template <int COLS, int M, int N>
__device__ __forceinline__ void gemm_nt(float (&acc)[M][N][4], const u32 (&a)[M][COLS / 16][4], u32 tile_b) {
#pragma unroll
    for (int j = 0; j < COLS / 16; ++j) {
        u32 step[M][4];
#pragma unroll
        for (int m = 0; m < M; ++m)
#pragma unroll
            for (int e = 0; e < 4; ++e) step[m][e] = a[m][j][e];
        gemm_nt_step<8 * N, COLS>(acc, step, tile_b, 0, j);
    }
}

// Step j of acc += A B; B: columns of a tile of B_ROWS x COLS, from atom col_b on, transposed on the way.
// SHORT: the last of the warps that share the columns may find less than N atoms.
template <int B_ROWS, int COLS, bool SHORT, int M, int N>
__device__ __forceinline__ void gemm_nn_step(float (&acc)[M][N][4], const u32 (&a)[M][4], u32 tile_b, int col_b, int j) {
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int n = 0; n < N; n += 2) {
        if (SHORT && col_b + n >= COLS / 8) continue;
        u32 b[4]; // 16 rows x 16 columns: two atoms
        ldmatrix_x4_trans(b, tile_b + fragment_offset<B_ROWS, COLS>(16 * j, lane % 16, (col_b + n) / 2, lane / 16));
#pragma unroll
        for (int m = 0; m < M; ++m) {
            mma(acc[m][n], a[m], b[0], b[1]);
            mma(acc[m][n + 1], a[m], b[2], b[3]);
        }
    }
}

// What happens to an operand on its way: edit(a, m, j) of block (m, j).
struct Unedited {
    __device__ __forceinline__ void operator()(u32 (&)[4], int, int) const {}
};

@ local shares = problem.op == "bwd" and problem.slices > 1 -- B has further columns; acc those from atom col_b on
// acc += P B. P never leaves the registers.
template <$(shares and "int COLS, bool SHORT, " or "")int M, int N, int K, class Edit = Unedited>
__device__ __forceinline__ void gemm_pn(float (&acc)[M][N][4], const float (&p)[M][K][4], u32 tile_b,$(shares and " int col_b," or "")
                                        const Edit &edit = Edit()) {
#pragma unroll
    for (int j = 0; j < K / 2; ++j) {
        u32 a[M][4];
#pragma unroll
        for (int m = 0; m < M; ++m) {
            pack_block(a[m], p[m], j);
            edit(a[m], m, j);
        }
        gemm_nn_step<8 * K, $(shares and "COLS, SHORT" or "8 * N, false")>(acc, a, tile_b, $(shares and "col_b" or "0"), j);
    }
}
@ if problem.op == "bwd" then

// acc += A B; A: the 16 M rows from `row` on of a tile of A_ROWS x B_ROWS.
template <int A_ROWS, int B_ROWS, int COLS, bool SHORT, int M, int N>
__device__ __forceinline__ void gemm_nn(float (&acc)[M][N][4], u32 tile_a, int row, u32 tile_b, int col_b) {
#pragma unroll
    for (int j = 0; j < B_ROWS / 16; ++j) {
        u32 a[M][4];
#pragma unroll
        for (int m = 0; m < M; ++m) load_a<A_ROWS, B_ROWS>(a[m], tile_a, row, m, j);
        gemm_nn_step<B_ROWS, COLS, SHORT>(acc, a, tile_b, col_b, j);
    }
}

// acc += A^T B; A: the 16 M columns from `col` on of a tile of B_ROWS x A_COLS.
template <int A_COLS, int B_ROWS, int COLS, bool SHORT, int M, int N>
__device__ __forceinline__ void gemm_tn(float (&acc)[M][N][4], u32 tile_a, int col, u32 tile_b, int col_b) {
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int j = 0; j < B_ROWS / 16; ++j) {
        u32 a[M][4];
#pragma unroll
        for (int m = 0; m < M; ++m)
            ldmatrix_x4_trans(a[m], tile_a + fragment_offset<B_ROWS, A_COLS>(16 * j, lane / 16 * 8 + lane % 8, col / 16 + m,
                                                                             lane / 8 % 2));
        gemm_nn_step<B_ROWS, COLS, SHORT>(acc, a, tile_b, col_b, j);
    }
}
@ end
