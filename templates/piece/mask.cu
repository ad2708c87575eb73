@ -- A CTA owns one tile of queries and walks over tiles of keys, or the other way round.
@ local own, own_block, walk_block = "q", "block_m", "block_n"
@ if walk == "q" then own, own_block, walk_block = "k", "block_n", "block_m" end
@ local own_iv = "{at." .. own .. "_first, at." .. own .. "_last}"
@ if problem.joins_heads then own_iv = "{row_query(p, at.q_first), row_query(p, at.q_last)}" end
@ -- Brings the variables that the mask reads into scope, as ints or as intervals of one point.
@ local function scalars(form)
@   local type, open, close = "int", "", ""
@   if form == "_iv" then type, open, close = "Interval", "iv(", ")" end
@   for _, name in ipairs({ "b", "h", "seqlen_q", "seqlen_k", "diag" }) do
@     if mask.uses[name] and name == "h" and problem.joins_heads then -- each row has its own
@       if form == "_iv" then
    const Interval h_iv = {at.h, at.h + p.row_heads - 1};
@       end
@     elseif mask.uses[name] then
    const $(type) $(name .. form) = $(open)at.$(name)$(close);
@     end
@   end
@   for i, name in ipairs(mask.params) do
    const $(type) $(name .. form) = $(open)p.mask_value[$(i - 1)]$(close);
@   end
@ end
// The tiles that this CTA walks over: [begin, end) may hold a pair of query and key that is seen; in [full_begin, full_end) all
// pairs are, and these tiles carry no mask.
struct TileRange {
    int begin, full_begin, full_end, end;
};

__device__ __forceinline__ TileRange tile_range(const Params &p, const Where &at) {
    i64 any_lo = 0, any_hi = at.seqlen_$(walk) - 1; // $(walk) that may be paired with some $(own) of the tile
@ if walk == "k" then
    i64 all_lo = any_lo, all_hi = any_hi; // and with every one, as far as the bounds go
@ else
    // And with every one. Queries past the end have lse = inf, hence p = 0; but for a key past the end p = 2^-lse may overflow,
    // and dQ multiplies it by a key of zeros: a tile with such keys is masked throughout.
    i64 all_lo = any_lo, all_hi = at.k_last - at.k_first == block_n - 1 ? 0x7fffffff : -1;
@ end
@ if #mask.upper + #mask.lower > 0 then
    const Interval $(own)_iv = $(own_iv);
@   scalars("_iv")
@   for _, bound in ipairs(mask.upper) do
    {
        const Interval bound = $(bound); // $(walk) <= bound
        any_hi = min(any_hi, bound.hi);
        all_hi = min(all_hi, bound.lo);
    }
@   end
@   for _, bound in ipairs(mask.lower) do
    {
        const Interval bound = $(bound); // $(walk) >= bound
        any_lo = max(any_lo, bound.lo);
        all_lo = max(all_lo, bound.hi);
    }
@   end
@ end
    TileRange tiles = {0, 0, 0, 0};
    if (any_lo > any_hi) return tiles;
@ if own == "k" and problem.seqused_k then
    if (at.k_first > at.k_last) return tiles; // no key of the tile is used
@ end
    tiles.begin = int(any_lo / $(walk_block));
    tiles.end = int(any_hi / $(walk_block)) + 1;
    tiles.full_begin = int(min(max((all_lo + $(walk_block) - 1) / $(walk_block), i64(tiles.begin)), i64(tiles.end)));
    tiles.full_end = int(max(min((all_hi + 1) / $(walk_block), i64(tiles.end)), i64(tiles.full_begin)));
    return tiles;
}

@ if mask.residual then
// What the bounds leave over is classified 32 tiles at a time, one tile a lane: bit i of active: tile 32 * word + i may
// hold a key that some row sees; of full: every row sees all of it.
struct TileScan {
    int word = -1;
    u32 active = 0, full = 0;
};

__device__ __forceinline__ void scan_tiles(TileScan &scan, int word, const TileRange &tiles, const Params &p, const Where &at) {
    const int n = 32 * word + threadIdx.x % 32;
    const Interval $(own)_iv = $(own_iv);
    const Interval $(walk)_iv = {i64(n) * $(walk_block), min(i64(n) * $(walk_block) + $(walk_block), i64(at.seqlen_$(walk))) - 1};
@   scalars("_iv")
    const Interval keep = $(mask.residual);
    scan.word = word;
    scan.active = __ballot_sync(full_warp, n >= tiles.begin && n < tiles.end && keep.hi != 0);
    scan.full = __ballot_sync(full_warp, n >= tiles.full_begin && n < tiles.full_end && keep.lo == 1);
}

// The next tile to visit at or below n; tiles.begin - 1 when there is none.
__device__ __forceinline__ int find_tile(TileScan &scan, int n, const TileRange &tiles, const Params &p, const Where &at) {
    while (n >= tiles.begin) {
        if (n / 32 != scan.word) scan_tiles(scan, n / 32, tiles, p, at);
        const u32 below = scan.active & (full_warp >> (31 - n % 32));
        if (below) return n / 32 * 32 + 31 - __clz(below);
        n = n / 32 * 32 - 1;
    }
    return tiles.begin - 1;
}

@ end
// Sets the scores of unseen pairs of tile n to -inf.
__device__ __forceinline__ void mask_tile(float (&s)[m_atoms][s_atoms][4], int n, const Params &p, const Where &at) {
    const int lane = threadIdx.x % 32;
@ scalars("")
#pragma unroll
    for (int m = 0; m < m_atoms; ++m)
#pragma unroll
        for (int r = 0; r < 2; ++r) {
@ local index = problem.joins_heads and "row_query(p, row)" or "row"
@ if mask.uses[own] or mask.uses.h or walk == "q" then
            const int row = opaque(at.$(own)_first) + warp_row() + 16 * m + 8 * r + lane / 4;
@ end
@ if mask.uses[own] then
            const int $(own) = $(mask.reads_along[own] and "min(" .. index .. ", at.seqlen_" .. own .. " - 1)" or index);
@ end
@ if problem.joins_heads and mask.uses.h then
            const int h = row_head(p, at, row);
@ end
@ if walk == "k" then
            int k_max = at.seqlen_k - 1;
@ else
            int q_max = row < at.seqlen_k ? 0x7fffffff : -1;
@ end
@ for _, bound in ipairs(mask.upper_at) do
            $(walk)_max = min($(walk)_max, $(bound));
@ end
@ if #mask.lower_at > 0 then
            int $(walk)_min = 0;
@   for _, bound in ipairs(mask.lower_at) do
            $(walk)_min = max($(walk)_min, $(bound));
@   end
@ end
@ if mask.residual and mask.reads then
            const auto residual_keep = [&](int $(walk)) { return $(mask.residual_keep); };
@ end
#pragma unroll
            for (int i = 0; i < s_atoms * 2; ++i) {
                const int $(walk) = n * $(walk_block) + warp_col() + 8 * (i / 2) + 2 * (lane % 4) + i % 2;
                bool keep = $(walk) <= $(walk)_max;
@ if #mask.lower_at > 0 then
                keep = keep && $(walk) >= $(walk)_min;
@ end
@ if mask.residual and mask.reads then
                keep = keep & residual_keep($(mask.reads_along[walk] and "min(" .. walk .. ", at.seqlen_" .. walk .. " - 1)" or walk)); // no branch, so that reads are made once
@ elseif mask.residual then
                keep = keep && ($(mask.residual_keep));
@ end
                if (!keep) s[m][i / 2][2 * r + i % 2] = NEG_INF;
            }
        }
}
