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
