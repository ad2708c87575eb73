@ -- Terms that add to s what goes by k in straight lines: the last score of row q is s + f(q, k), and f of a tile's keys is known from two.
// Whether f is a straight line along the keys of tiles first to last for each of 64 rows from q_0 on: an absolute value bends where its
// argument changes sign, which then has both signs at the corners.
__device__ __forceinline__ bool is_straight(int first, int last, int q_0, const Params &p, const Where &at) {
@ scalars()
    bool straight = true;
@ for _, bend in ipairs(score.bends) do
    {
        int least = 0, most = 0;
#pragma unroll
        for (int corner = 0; corner < 4; ++corner) {
            const int q = q_0 + corner / 2 * 63, k = corner % 2 == 0 ? first * $(plan.score_block) : (last + 1) * $(plan.score_block) - 1;
            const int value = $(bend);
            least = min(least, value), most = max(most, value);
        }
        straight = straight && (least == 0 || most == 0);
    }
@ end
    return straight;
}

@ if layout.line_bytes > 0 then
@   include("piece/score_line.cu")
@ else
@ local row = "opaque(at.q_first) + warp_row() + 8 * r + lane / 4"
@ local span = along_tiles > 1 and along_tiles .. " * " .. plan.score_block or plan.score_block
// Of a lane's rows: scale_log2 (f - m) at the lane's first key of a tile$(along_tiles > 1 and ", and the next" or ""), and how it goes on.
struct Lines {
    float start[2], slope[2];

    __device__ __forceinline__ Lines() {}
    __device__ __forceinline__ Lines(int n, const u64 (&m_scaled)[m_atoms], const Params &p, const Where &at) {
        const int lane = lane_anew(), first_k = n * $(plan.score_block) + 2 * (lane % 4);
        float scaled[2];
        unpair_f32(scaled[0], scaled[1], m_scaled[0]);
#pragma unroll
        for (int r = 0; r < 2; ++r) {
            const int row = $(row);
            const float first = score_at(0.0f, row, first_k, p, at);
            start[r] = fmaf(first, log2_e, -scaled[r]);
            slope[r] = (score_at(0.0f, row, first_k + ($(span) - 8), p, at) - first) * (log2_e / ($(span) - 8)); // of the last atom
        }
    }
};

// exponentiate, of raw scores of such a tile, whose first key is the line's or `behind` it.
template <int BEHIND> __device__ __forceinline__ void exponentiate_along(float (&s)[m_atoms][s_atoms][4], const Lines &line, float (&l_i)[m_atoms][2], const Params &p) {
    const float scale_log2 = p.scale * log2_e;
#pragma unroll
    for (int r = 0; r < 2; ++r)
#pragma unroll
        for (int i = 0; i < s_atoms * 2; ++i) {
            float &x = s[0][i / 2][2 * r + i % 2];
            x = ex2(fmaf(x, scale_log2, fmaf(line.slope[r], float(BEHIND + 8 * (i / 2) + i % 2), line.start[r])));
            l_i[0][r] += x;
        }
}
@ end
