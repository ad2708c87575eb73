@ local prescaled = plan.family == "wgmma" and problem.prescaled
@ local far = score.strays_far and plan.operands ~= "e4m3"
@ local fp32 = problem.dtype == "fp32" -- takes the difference first, which is exact where p is near 1, so that no rounding is as large as s is
@ local low = fp32 and #score.terms == 0 -- what scores lose in a float, up to 2^-7 of them
@ local low_scores = low and "const float (&low)[m_atoms][s_atoms][4], " or ""
// Online softmax (FlashAttention-2, algorithm 1, lines 8 to 10) in base 2: p = 2^(scale_log2 (s - m)).
//
// m_i may lag behind the true maximum by up to lag in the exponent: any reference gives the same quotient, p stays below
// 2^lag, and the rescaling of o, the dearest part of the step, is skipped while no row of the warp needs it.
@ if ones then
//
// Weights of 8 bits have no more range than 2^-7 to 448, so here p = 2^(scale_log2 (s - m) + weight_log2), and the reference rises
// where one of them would be more. What is done first sees few keys of a row, whose maximum is mostly a binade or two higher.
constexpr float weight_log2 = 6.0f;
constexpr float lag = 0.0f;
@ elseif plan.operands == "e4m3" then
//
// Weights of 8 bits have no more range than 2^-9 to 448, so here p = 2^(scale_log2 (s - m) + weight_log2): what is much smaller than
// the reference still counts, and what is a little larger still fits. Where the sum of a lane's eight is more than 448, the reference
// rises (lower_weights), so that none of them is cut off. The sums of a row of equal scores are 2^8. Where the maximum is taken it
// becomes the reference, for a row's largest weight is then 2^weight_log2, which rounds to itself.
constexpr float weight_log2 = 5.0f;
constexpr float most_weight = 448.0f;
constexpr float lag = 0.0f;
@ else
constexpr float lag = $(fp32 and "1.0f" or "8.0f");
@ end

__device__ __forceinline__ float quad_max(float x) {
    x = fmaxf(x, __shfl_xor_sync(full_warp, x, 1));
    return fmaxf(x, __shfl_xor_sync(full_warp, x, 2));
}

__device__ __forceinline__ float quad_sum(float x) {
    x += __shfl_xor_sync(full_warp, x, 1);
    return x + __shfl_xor_sync(full_warp, x, 2);
}

// No key seen yet. Each array's second index is the row half: 0 for g, 1 for g + 8.
__device__ __forceinline__ void reset(float (&m_i)[m_atoms][2], float (&l_i)[m_atoms][2]) {
#pragma unroll
    for (int m = 0; m < m_atoms; ++m) {
        m_i[m][0] = m_i[m][1] = $(prescaled and "0.0f" or "NEG_INF");
        l_i[m][0] = l_i[m][1] = 0.0f;
    }
}
@ if plan.family == "mma" then

__device__ __forceinline__ void reset(float (&o)[m_atoms][o_atoms][4], float (&m_i)[m_atoms][2], float (&l_i)[m_atoms][2]) {
    fill(o, 0.0f);
    reset(m_i, l_i);
}
@ end

@ -- As pairs of registers: a pair has an even and an odd one, thus one in each bank, and the exponentiation, which takes them in
@ -- turn, reads them once and not 32 times beside the tensor cores' reads (7 % of the time at head dim 64).
@ local pairs = plan.family == "wgmma"
@ if ones then
@   include("piece/round_weights.cu")

@ end
@ if prescaled then
@   include("piece/prescaled.cu")

@ else
// $(fp32 and "m" or ones and "What a score takes to become a weight's bits" or "scale_log2 m"), which full tiles go on using; 0 for a row that has seen no key.
__device__ __forceinline__ void scale_maximum($(pairs and "u64 (&m_scaled)[m_atoms]" or "float (&m_scaled)[m_atoms][2]"), const float (&m_i)[m_atoms][2], float scale_log2) {
#pragma unroll
    for (int m = 0; m < m_atoms; ++m) {
@ if pairs then
        float scaled[2];
@ end
#pragma unroll
        for (int r = 0; r < 2; ++r) $(pairs and "scaled" or "m_scaled[m]")[r] = m_i[m][r] == NEG_INF ? 0.0f : m_i[m][r]$(fp32 and "" or " * scale_log2");
@ if pairs then
@   if ones then
#pragma unroll
        for (int r = 0; r < 2; ++r) scaled[r] = (weight_log2 + 7.0f - bits_bend - scaled[r]) * bits_unit;
@   elseif plan.operands == "e4m3" then
        scaled[0] -= weight_log2, scaled[1] -= weight_log2;
@   end
        m_scaled[m] = pair_f32(scaled[0], scaled[1]);
@ end
    }
}

@ if far then
// Rows whose reference is so far from 0 that what its product is rounded by would show: their scores become differences from it, and the
// reference of these 0.
__device__ __forceinline__ bool is_far(float m, float scale_log2) { return fabsf(m * scale_log2) >= 0x1p20f && m != NEG_INF; }
__device__ __forceinline__ void take_differences(float (&s)[m_atoms][s_atoms][4], $(pairs and "u64 (&m_scaled)[m_atoms]" or "float (&m_scaled)[m_atoms][2]"), const float (&m_i)[m_atoms][2],
                                                 float scale_log2) {
    bool any = false;
#pragma unroll
    for (int m = 0; m < m_atoms; ++m) any = any || is_far(m_i[m][0], scale_log2) || is_far(m_i[m][1], scale_log2);
    if (!__any_sync(full_warp, any)) return;
    float near[m_atoms][2]; // -inf counts for 0
#pragma unroll
    for (int m = 0; m < m_atoms; ++m)
#pragma unroll
        for (int r = 0; r < 2; ++r) {
            const bool far = is_far(m_i[m][r], scale_log2);
            near[m][r] = far ? NEG_INF : m_i[m][r];
            const float from = far ? m_i[m][r] : 0.0f;
#pragma unroll
            for (int n = 0; n < s_atoms; ++n) s[m][n][2 * r] -= from, s[m][n][2 * r + 1] -= from;
        }
    scale_maximum(m_scaled, near, scale_log2);
}

@ end
@ if plan.operands == "e4m3" and not ones then
// p of atoms FROM to TO - 1, a multiple of four; l_i is the lane's own share of the row sum. Returns the largest sum of eight of the
// lane's weights.
template <int FROM = 0, int TO = s_atoms>
__device__ __forceinline__ float exponentiate(float (&s)[m_atoms][s_atoms][4], const u64 (&m_scaled)[m_atoms],
                                              float (&l_i)[m_atoms][2], float scale_log2) {
    float most = 0.0f, scaled[2];
    unpair_f32(scaled[0], scaled[1], m_scaled[0]);
#pragma unroll
    for (int r = 0; r < 2; ++r)
#pragma unroll
        for (int n = FROM; n < TO; n += 4) {
            float sum;
#pragma unroll
            for (int i = 0; i < 8; ++i) {
                float &p = s[0][n + i / 2][2 * r + i % 2];
                p = ex2(fmaf(p, scale_log2, -scaled[r]));
                sum = i == 0 ? p : sum + p;
            }
            l_i[0][r] += sum;
            most = fmaxf(most, sum);
        }
    return most;
}

@ elseif not ones then
// p = 2^(scale_log2 (s$(low and " + low" or "") - m)); l_i is the lane's own share of the row sum.
__device__ __forceinline__ void exponentiate(float (&s)[m_atoms][s_atoms][4], $(low_scores)const $(pairs and "u64 (&m_scaled)[m_atoms]" or "float (&m_scaled)[m_atoms][2]"),
                                             float (&l_i)[m_atoms][2], float scale_log2) {
#pragma unroll
    for (int m = 0; m < m_atoms; ++m) {
@ if pairs then
        float scaled[2];
        unpair_f32(scaled[0], scaled[1], m_scaled[m]);
@ end
#pragma unroll
@   if fp32 then
        for (int r = 0; r < 2; ++r) {
            float sum = 0.0f; // of the tile: many small p that are alike, each added to a large l, would be rounded alike
#pragma unroll
            for (int n = 0; n < s_atoms; ++n) {
                float *pair = &s[m][n][2 * r];
                pair[0] = ex2((pair[0] - m_scaled[m][r]$(low and " + low[m][n][2 * r]" or "")) * scale_log2);
                pair[1] = ex2((pair[1] - m_scaled[m][r]$(low and " + low[m][n][2 * r + 1]" or "")) * scale_log2);
                sum += pair[0] + pair[1];
            }
            l_i[m][r] += sum;
        }
@   else
        for (int r = 0; r < 2; ++r)
#pragma unroll
            for (int n = 0; n < s_atoms; ++n)
#pragma unroll
                for (int e = 2 * r; e < 2 * r + 2; ++e) {
                    s[m][n][e] = ex2(fmaf(s[m][n][e], scale_log2, -$(pairs and "scaled" or "m_scaled[m]")[r]));
                    l_i[m][r] += s[m][n][e];
                }
@   end
    }
}

@ end
@ end
@ local function whole(n, e)
@   local of = "s[m][" .. n .. "][" .. e .. "]"
@   return low and of .. " + low" .. of:sub(2) or of
@ end
// The largest score of row half r of atom m, in the first TO atoms of keys.
template <int TO = s_atoms> __device__ __forceinline__ float row_maximum(const float (&s)[m_atoms][s_atoms][4], $(low_scores)int m, int r) {
    float row_max = fmaxf($(whole("0", "2 * r")), $(whole("0", "2 * r + 1")));
#pragma unroll
    for (int n = 1; n < TO; ++n) row_max = fmaxf(row_max, fmaxf($(whole("n", "2 * r")), $(whole("n", "2 * r + 1"))));
    return quad_max(row_max);
}

@ if plan.family == "wgmma" then
// m of the first tile, to which l and o, still empty, refer.
__device__ __forceinline__ void begin_maximum(const float (&s)[m_atoms][s_atoms][4], float (&m_i)[m_atoms][2]) {
#pragma unroll
    for (int m = 0; m < m_atoms; ++m)
#pragma unroll
        for (int r = 0; r < 2; ++r) m_i[m][r] = row_maximum(s, m, r);
}

@ end
@ if plan.operands == "e4m3" and not ones then
// Lets the reference of each row whose sums of eight weights may be too large rise to its largest weight; the first TO atoms are weights,
// the others scores. `alpha` is what that makes of the rows of o. What is infinite becomes NaN, and so does its row's sum, which shows at
// the end.
template <int TO = s_atoms>
__device__ __forceinline__ void lower_weights(float (&s)[m_atoms][s_atoms][4], float (&m_i)[m_atoms][2], u64 (&m_scaled)[m_atoms],
                                              float (&l_i)[m_atoms][2], float (&alpha)[2], float scale_log2) {
    float scaled[2];
    unpair_f32(scaled[0], scaled[1], m_scaled[0]);
#pragma unroll
    for (int r = 0; r < 2; ++r) {
        const float top = row_maximum<TO>(s, 0, r), rise = top > most_weight / 8 ? lg2(top) - weight_log2 : 0.0f;
        const float raised = scaled[r] + rise;
        alpha[r] = ex2(scaled[r] - raised); // what rounding leaves of the rise, which is little where m is far from 0
        if (rise > 0.0f) m_i[0][r] = (raised + weight_log2) * rcp(scale_log2);
        scaled[r] = raised;
        l_i[0][r] *= alpha[r];
#pragma unroll
        for (int n = 0; n < TO; ++n) {
            s[0][n][2 * r] *= alpha[r];
            s[0][n][2 * r + 1] *= alpha[r];
        }
    }
    m_scaled[0] = pair_f32(scaled[0], scaled[1]);
}

__device__ __forceinline__ void scale_rows(float (&o)[m_atoms][o_atoms][4], const float (&alpha)[2]) {
#pragma unroll
    for (int n = 0; n < o_atoms; ++n)
#pragma unroll
        for (int e = 0; e < 4; ++e) o[0][n][e] *= alpha[e / 2];
}

@ end
// Takes the tile's scores into m, to which o and l then refer.
$(plan.halved and "template <class Share>\n" or "")__device__ __forceinline__ void raise_maximum(const float (&s)[m_atoms][s_atoms][4], $(low_scores)float (&m_i)[m_atoms][2],
                                              float (&l_i)[m_atoms][2], float (&o)[m_atoms][o_atoms][4], float scale_log2$(plan.halved and ", const Share &share" or "")) {
    float m_new[m_atoms][2];
    bool grows = false;
#pragma unroll
    for (int m = 0; m < m_atoms; ++m)
#pragma unroll
        for (int r = 0; r < 2; ++r) {
            m_new[m][r] = fmaxf(m_i[m][r], row_maximum(s, $(low and "low, " or "")m, r));
@ if plan.halved then
        }
    share(m_new);
#pragma unroll
    for (int m = 0; m < m_atoms; ++m)
#pragma unroll
        for (int r = 0; r < 2; ++r) {
@ end
            grows = grows || (m_new[m][r] - m_i[m][r]) * scale_log2 > lag;
        }
    if (__any_sync(full_warp, grows)) {
#pragma unroll
        for (int m = 0; m < m_atoms; ++m)
#pragma unroll
            for (int r = 0; r < 2; ++r) {
                // A row that has seen no key yet keeps -inf, and -inf - -inf must not become NaN.
                const float alpha = m_new[m][r] == NEG_INF ? 1.0f : ex2((m_i[m][r] - m_new[m][r]) * scale_log2);
                m_i[m][r] = m_new[m][r];
@ if score.strays_far and plan.family == "wgmma" then -- nothing is left of what came before, be it infinite
                const auto lower = [&](float &x) { x = alpha > 0.0f ? x * alpha : 0.0f; };
@ else
                const auto lower = [&](float &x) { x *= alpha; };
@ end
                lower(l_i[m][r]);
#pragma unroll
                for (int n = 0; n < o_atoms; ++n) {
                    lower(o[m][n][2 * r]);
                    lower(o[m][n][2 * r + 1]);
                }
            }
    }
}
@ if not prescaled and strays then

// Full tiles keep the m of the tiles before: no maximum, no exchange between lanes, no rescaling. Whether that was right shows
// at the end: a row sum or an output that left its range, as it does of a weight that 16 bits do not hold, or a row to which the tiles
// before gave no m.
@ if plan.family == "wgmma" then
__device__ __forceinline__ void find_strays(u32 (&spoiled)[2], $(estimates and "const bool (&low)[2], " or "")const float (&m_i)[m_atoms][2], const float (&l_i)[m_atoms][2]$(far and ", float scale_log2" or "")) {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
        const bool left = m_i[0][r] == NEG_INF || $(far and "is_far(m_i[0][r], scale_log2) || " or "")!(l_i[0][r] <= 0x1p64f)$(estimates and " || low[r]" or "");
        spoiled[r] = left ? 0x3c003c00 : 0; // which stays what it is where zeros are added
    }
}
@ else
@ if mask.residual then
// Does a row of the warp have no reference yet, as where a term hides all that it has seen? Full tiles would refer to 0, and a maximum that
// is raised behind them would leave nothing of their weights.
__device__ __forceinline__ bool lacks_reference(const float (&m_i)[m_atoms][2]) {
    bool lacks = false;
#pragma unroll
    for (int m = 0; m < m_atoms; ++m) lacks = lacks || m_i[m][0] == NEG_INF || m_i[m][1] == NEG_INF;
    return __any_sync(full_warp, lacks);
}

@ end
__device__ __forceinline__ bool left_range(const float (&o)[m_atoms][o_atoms][4], const float (&m_i)[m_atoms][2],
                                           const float (&l_i)[m_atoms][2], int num_rows) {
    const int first_row = warp_row() + lane_anew() / 4;
    bool left = false;
#pragma unroll
    for (int m = 0; m < m_atoms; ++m)
#pragma unroll
        for (int r = 0; r < 2; ++r) {
            if (first_row + 16 * m + 8 * r >= num_rows) continue;
            left = left || m_i[m][r] == NEG_INF || !(l_i[m][r] <= 0x1p64f);
            float sum = 0.0f; // of zeros, unless an element is infinite or NaN
#pragma unroll
            for (int n = 0; n < o_atoms; ++n) sum += o[m][n][2 * r] * 0.0f + o[m][n][2 * r + 1] * 0.0f;
            left = left || sum != 0.0f;
        }
    return left;
}
@ end
@ end
