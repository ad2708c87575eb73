// Leaves what part of the queries gives to a gradient of the warp's keys: columns `first` and on of `width`, in their rows from column `to` on.
template <int ATOMS>
__device__ __forceinline__ void leave_part(const float (&x)[m_atoms][ATOMS][4], const Params &p, const Where &at, int split, int kv_head, int to, int first, int width) {
    const int lane = lane_anew(); // else addresses are kept through the walk
#pragma unroll
    for (int m = 0; m < m_atoms; ++m)
#pragma unroll
        for (int r = 0; r < 2; ++r) {
            const int k = at.k_first + warp_row() + 16 * m + 8 * r + lane / 4;
            if (k >= at.seqlen_k) continue;
            float2 *row = reinterpret_cast<float2 *>(split_row(p, split, at, kv_head, k) + to + first) + lane % 4;
#pragma unroll
            for (int n = 0; n < ATOMS; ++n)
                if (first + 8 * n < width) row[4 * n] = make_float2(x[m][n][2 * r], x[m][n][2 * r + 1]);
        }
}
