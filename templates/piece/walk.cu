// The key tiles that a row of queries visits, from the last to the first. All lanes of a warp walk together.
struct TileWalk {
    TileRange tiles;
    int n; // the tile at hand; -1: there is none
@ if mask.residual then
    TileScan scan;
@ end

    __device__ __forceinline__ TileWalk() : tiles{0, 0, 0, 0}, n(-1) {}

@ local shares = walk == "q" and mask.leading_rows > 0
@ local tiles = shares and not mask.residual and "at.split < 0 ? tile_range(p, at) : split_range(tile_range(p, at), p, at)" or "tile_range(p, at)"
    // `careful`: no tile is taken for full.
    __device__ __forceinline__ TileWalk(const Params &p, const Where &at, bool careful = false) : tiles($(tiles)) {
        if (careful) tiles.full_begin = tiles.full_end = tiles.begin;
@ if mask.residual then
        n = find_tile(scan, tiles.end, tiles, p, at);
@   if shares then
        if (at.split >= 0 && n >= 0) take_share(p, at);
@   end
@ else
        n = tiles.end > tiles.begin ? tiles.end - 1 : -1;
@ end
    }

@ if shares and mask.residual then
    // A split's share of the tiles from the first to the last that is visited, which are fewer than the bounds say: those of a document.
    __device__ __forceinline__ void take_share(const Params &p, const Where &at) {
        if (scan.first <= tiles.begin) tiles.begin = lowest_tile(scan);
        tiles.end = n + 1;
        tiles = split_range(tiles, p, at);
        drop_below(scan, tiles.begin);
        n = next_run(scan, tiles.end);
        if (n < 0 && scan.first > tiles.begin) n = find_tile(scan, min(scan.first, tiles.end), tiles, p, at);
    }

@ end
    // Whether all pairs of the tile at hand are seen.
    __device__ __forceinline__ bool whole() const {
@ if mask.residual then
        return scan.whole();
@ else
        return n >= tiles.full_begin && n < tiles.full_end;
@ end
    }

    __device__ __forceinline__ void next(const Params &p, const Where &at) {
@ if mask.residual then
        n = next_tile(scan, n);
        if (n < 0 && scan.first > tiles.begin) n = find_tile(scan, scan.first, tiles, p, at);
@ else
        n = n > tiles.begin ? n - 1 : -1;
@ end
    }
};
