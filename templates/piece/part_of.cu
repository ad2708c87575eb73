@ local own, block = walk == "k" and "q" or "k", walk == "k" and "block_m" or "block_n"
// $(mask.all_lead and "Where tiles are few they" or "The first " .. mask.leading .. " tiles see far more " .. (walk == "k" and "keys" or "queries") .. " than most. Where there are many, these") come in parts, which leave $(walk == "k" and "O and lse" or "dK and dV") in float32;
// fk_$(walk == "k" and "forward" or "backward")_combine adds them up. Which part row y of the grid is; -1: the whole of its tile.
__device__ __forceinline__ int part_of(const Params &p, int y, int &tile) {
    const int leading = p.num_splits > 1 ? min($(mask.leading), (p.seqlen_$(own) + ($(block) - 1)) / $(block)) : 0;
    const int nth = quotient(y, p.num_splits, p.splits_inverse);
    tile = nth < leading ? nth : y - leading * (p.num_splits - 1);
    return nth < leading ? y - nth * p.num_splits : -1;
}
