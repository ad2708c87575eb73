@ local by_heads = mask.all_lead and problem.gqa -- splits share out heads, too (piece/row_walk.cu)
@ local splits, inverse = by_heads and "p.query_splits" or "p.num_splits", by_heads and "p.query_splits_inverse" or "p.splits_inverse"
@ if by_heads then
// How many of a group's heads come before those of a split.
__device__ __forceinline__ int heads_before(const Params &p, int split) { return quotient(split, p.query_splits, p.query_splits_inverse) * p.part_heads; }

@ end
// The share of a row of tiles that this CTA's split takes: as many as the others', the last ones perhaps fewer or none.
__device__ __forceinline__ TileRange split_range(TileRange tiles, const Params &p, const Where &at) {
    const int each = quotient(tiles.end - tiles.begin + $(splits) - 1, $(splits), $(inverse));
    tiles.begin = min(tiles.begin + $(by_heads and "(at.split - quotient(at.split, p.query_splits, p.query_splits_inverse) * p.query_splits)" or "at.split") * each, tiles.end);
    tiles.end = min(tiles.begin + each, tiles.end);
    tiles.full_begin = min(max(tiles.full_begin, tiles.begin), tiles.end);
    tiles.full_end = max(min(tiles.full_end, tiles.end), tiles.full_begin);
    return tiles;
}
