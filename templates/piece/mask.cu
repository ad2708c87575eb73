@ -- Brings the variables that the mask reads into scope, as ints or as intervals of one point.
@ local function scalars(form)
@   local type, open, close = "int", "", ""
@   if form == "_iv" then type, open, close = "Interval", "iv(", ")" end
@   for _, name in ipairs({ "b", "h", "seqlen_q", "seqlen_k", "diag" }) do
@     if mask.uses[name] then
    const $(type) $(name .. form) = $(open)at.$(name)$(close);
@     end
@   end
@   for i, name in ipairs(mask.params) do
    const $(type) $(name .. form) = $(open)p.mask_value[$(i - 1)]$(close);
@   end
@ end
// The key tiles of this CTA: [begin, end) may hold a key that one of its rows sees; among them [full_begin, full_end)
// hold only keys that every row sees, and carry no mask.
struct TileRange {
    int begin, full_begin, full_end, end;
};

__device__ __forceinline__ TileRange tile_range(const Params &p, const Where &at) {
    i64 any_lo = 0, any_hi = at.seqlen_k - 1; // keys that some row may see
    i64 all_lo = any_lo, all_hi = any_hi;     // keys that every row sees, as far as the bounds go
@ if #mask.upper + #mask.lower > 0 then
    const Interval q_iv = {at.q_first, at.q_last};
@   scalars("_iv")
@   for _, bound in ipairs(mask.upper) do
    {
        const Interval bound = $(bound); // k <= bound
        any_hi = min(any_hi, bound.hi);
        all_hi = min(all_hi, bound.lo);
    }
@   end
@   for _, bound in ipairs(mask.lower) do
    {
        const Interval bound = $(bound); // k >= bound
        any_lo = max(any_lo, bound.lo);
        all_lo = max(all_lo, bound.hi);
    }
@   end
@ end
    TileRange tiles = {0, 0, 0, 0};
    if (any_lo > any_hi) return tiles;
    tiles.begin = int(any_lo / block_n);
    tiles.end = int(any_hi / block_n) + 1;
    tiles.full_begin = int(min(max((all_lo + block_n - 1) / block_n, i64(tiles.begin)), i64(tiles.end)));
    tiles.full_end = int(max(min((all_hi + 1) / block_n, i64(tiles.end)), i64(tiles.full_begin)));
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
    const Interval q_iv = {at.q_first, at.q_last};
    const Interval k_iv = {i64(n) * block_n, min(i64(n) * block_n + block_n, i64(at.seqlen_k)) - 1};
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
// Sets the scores of unseen keys of tile n to -inf.
__device__ __forceinline__ void mask_tile(float (&s)[m_atoms][s_atoms][4], int n, const Params &p, const Where &at) {
    const int lane = threadIdx.x % 32;
@ scalars("")
#pragma unroll
    for (int m = 0; m < m_atoms; ++m)
#pragma unroll
        for (int r = 0; r < 2; ++r) {
            const int q = opaque(at.q_first) + threadIdx.x / 32 * rows_per_warp + 16 * m + 8 * r + lane / 4;
            int k_max = at.seqlen_k - 1;
@ for _, bound in ipairs(mask.upper_at) do
            k_max = min(k_max, $(bound));
@ end
@ if #mask.lower_at > 0 then
            int k_min = 0;
@   for _, bound in ipairs(mask.lower_at) do
            k_min = max(k_min, $(bound));
@   end
@ end
#pragma unroll
            for (int i = 0; i < s_atoms * 2; ++i) {
                const int k = n * block_n + 8 * (i / 2) + 2 * (lane % 4) + i % 2;
                bool keep = k <= k_max;
@ if #mask.lower_at > 0 then
                keep = keep && k >= k_min;
@ end
@ if mask.residual then
                keep = keep && ($(mask.residual_keep));
@ end
                if (!keep) s[m][i / 2][2 * r + i % 2] = NEG_INF;
            }
        }
}
