@ local all = "p.batch * p.num_heads_" .. (walk == "q" and "kv" or "q")
@ local group_heads = walk == "q" and "p.kv_group_heads" or "p.group_heads"
// Some tiles at the beginning of a head are far longer than the others. They are claimed first, of all heads, and then the others group
// by group: else those of the last group would begin near the end, and be waited for. Returns the tile of a claim.
__device__ __forceinline__ int in_turn(const Params &p, int claim) {
    const int all = $(all), ranks = p.group_tiles / $(group_heads), leading = min($(mask.leading), ranks);
    int rank = claim / all, head = claim - rank * all;
    if (rank >= leading) {
        const int rest = claim - leading * all, rest_tiles = (ranks - leading) * $(group_heads);
        const int first = rest / rest_tiles * $(group_heads), in_group = rest - first * (ranks - leading);
        const int heads = min($(group_heads), all - first);
        rank = in_group / heads;
        head = first + in_group - rank * heads;
        rank += leading;
    }
    const int group = head / $(group_heads), first = group * $(group_heads);
    return group * p.group_tiles + rank * min($(group_heads), all - first) + head - first;
}
