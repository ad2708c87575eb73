@ -- `tanh`: what serves all scores, where they begin with one that has been looked at.
@ local function weigh_scores(name, tanh)
@   local at_once = tanh and caps.bare
$(tanh and "template <class Tanh>\n" or "")__device__ __forceinline__ void $(name)(float (&acc)[m_atoms][s_atoms][4], const u64 (&m_scaled)[m_atoms], $(in_parts and "" or "float (&l_i)[m_atoms][2], ")int n,
                                           const Params &p, const Where &at$(in_parts and ", int first, int last" or "")$(tanh and ", const Tanh &tanh" or "")) {
    const int lane = lane_anew();
@   scalars()
@   if not at_once then
    const float unit = score_scale(p);
@   end
    float scaled[2];
    unpair_f32(scaled[0], scaled[1], m_scaled[0]);
@   score_pairs({}, tanh and not at_once and "tanh(%s)", false, at_once and "at once" or "by its score", in_parts and { "first", "last" })
}
@ end
@ if not in_parts then
// Raw scores of a tile that is seen as a whole become weights, each at one go: the exponentials' unit works while the other scores are
// computed.
@   weigh_scores("weigh_tile", caps)
@ else
// Raw scores of atoms `first` to `last` - 1 become weights, each at one go: the exponentials' unit works while the other scores are
// computed. `tanh` serves them.
@   weigh_scores("weigh_atoms", true)

// The same of any scores.
@   weigh_scores("weigh_any_atoms")

__device__ __forceinline__ void add_weights(float (&l_i)[m_atoms][2], const float (&acc)[m_atoms][s_atoms][4], int first, int last) {
#pragma unroll
    for (int m = 0; m < m_atoms; ++m)
#pragma unroll
        for (int i = first; i < last; ++i)
#pragma unroll
            for (int r = 0; r < 2; ++r) l_i[m][r] += acc[m][i][2 * r] + acc[m][i][2 * r + 1];
}

// Raw scores of a tile that is seen as a whole become weights, part by part, which warps need not agree about. Beside a part's exponentials
// stand the look at the next part, whether it is small, and the sums of the part before, beside the last part's the conversions to 16 bits
// of all before: pack(first, last). By then P V is there as a rule, and wait() is for it.
template <class Wait, class Pack>
__device__ __forceinline__ void weigh_tile(float (&acc)[m_atoms][s_atoms][4], const u64 (&m_scaled)[m_atoms], float (&l_i)[m_atoms][2], int n,
                                           const Params &p, const Where &at, const ShortTanh &short_tanh, const Wait &wait, const Pack &pack) {
    constexpr int head = 4, step = 6; // atoms of the first part, which is looked at before anything else, and of the others
    constexpr int last = (s_atoms - head - 1) / step * step + head; // where the last part begins
    static_assert(head <= step && head < s_atoms, "parts are counted from behind the first one");
    bool small = short_tanh.serves(largest(acc, 0, head));
#pragma unroll
    for (int limit = head; limit < s_atoms + step; limit += step) {
        const int begin = max(limit - step, 0), before = max(begin - step, 0), end = min(limit, s_atoms), next = min(limit + step, s_atoms);
        bool next_small = false;
        if (begin == last) wait();
        if (small) {
            if (begin != last) next_small = short_tanh.serves(largest(acc, end, next));
            add_weights(l_i, acc, before, begin);
            if (begin == last) pack(0, begin);
            weigh_atoms(acc, m_scaled, n, p, at, begin, end, short_tanh);
#pragma unroll
            for (int r = 0; r < 2; ++r) l_i[0][r] = __int_as_float(opaque(__float_as_int(l_i[0][r]))); // the sums stay where they are
        } else {
            const LargerTanh larger_tanh(short_tanh);
            if (larger_tanh.serves(largest(acc, begin, end))) {
                weigh_atoms(acc, m_scaled, n, p, at, begin, end, larger_tanh);
            } else {
                weigh_any_atoms(acc, m_scaled, n, p, at, begin, end);
            }
            add_weights(l_i, acc, before, begin);
            if (begin == last) pack(0, begin);
            if (begin != last) next_small = short_tanh.serves(largest(acc, end, next));
        }
        small = next_small;
    }
    add_weights(l_i, acc, last, s_atoms);
    pack(last, s_atoms);
}
@ end
