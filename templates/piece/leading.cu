@ local heads = (problem.packed and "" or "p.batch * ") .. "p.num_heads_" .. (walk == "q" and "kv" or "q")
@ local group_heads = walk == "q" and "p.kv_group_heads" or "p.group_heads"
@ local parts = mask.leading_rows == 0 and "" or walk == "q" and " Where heads are few, parts of them." or " Where there are many keys, parts of them."
// Some tiles at the beginning of a head are far longer than the others. They are claimed first, of all heads, and then the others group
// by group: else those of the last group would begin near the end, and be waited for.$(parts)
// The number of the n-th tile in that order.
__device__ __forceinline__ int whole_tile(const Params &p, int n) {
    const int heads = $(heads), tiles = p.group_tiles / $(group_heads), leading = min($(mask.leading), tiles);
    int rank = n / heads, head = n - rank * heads;
    if (rank >= leading) {
        const int rest = n - leading * heads, group = rest / ((tiles - leading) * $(group_heads)), first = group * $(group_heads);
        const int in_group = rest - first * (tiles - leading), group_heads = min($(group_heads), heads - first);
        rank = in_group / group_heads;
        head = first + in_group - rank * group_heads;
        rank += leading;
    }
    const int group = head / $(group_heads), first = group * $(group_heads);
    return group * p.group_tiles + rank * min($(group_heads), heads - first) + head - first;
}

@ if mask.leading_rows > 0 and walk == "q" then
// The tile of a claim, and which part of its queries is meant; -1: all.
__device__ __forceinline__ int in_turn(const Params &p, int claim, int &split) {
    const int leading = leading_tiles(p), which = quotient(claim, p.num_splits, p.splits_inverse);
    const bool is_part = p.num_splits > 1 && which < leading;
    split = is_part ? claim - which * p.num_splits : -1;
    return whole_tile(p, is_part ? which : claim - leading * (p.num_splits - 1));
}
@ else
// The tile, or part of one, of a claim.
__device__ __forceinline__ int in_turn(const Params &p, int claim) {
@ if mask.leading_rows > 0 then
    const int split = p.num_splits > 1 ? min($(mask.leading), p.group_tiles / $(group_heads)) * $(heads) : 0;
    if (claim < split * p.num_splits) return p.first_part + claim;
    claim -= split * (p.num_splits - 1);
@ end
    return whole_tile(p, claim);
}
@ end
