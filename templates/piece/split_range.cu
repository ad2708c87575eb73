// The share of a row of tiles that this CTA's split takes: as many as the others', the last ones perhaps fewer or none.
__device__ __forceinline__ TileRange split_range(TileRange tiles, const Params &p, const Where &at) {
    const int each = quotient(tiles.end - tiles.begin + p.num_splits - 1, p.num_splits, p.splits_inverse);
    tiles.begin = min(tiles.begin + at.split * each, tiles.end);
    tiles.end = min(tiles.begin + each, tiles.end);
    tiles.full_begin = min(max(tiles.full_begin, tiles.begin), tiles.end);
    tiles.full_end = max(min(tiles.full_end, tiles.end), tiles.full_begin);
    return tiles;
}
