// What the bounds leave over is classified 1024 tiles at a time: a lane holds a word for 32 of them. Bit i of active: tile
// first + 32 * lane + i may hold a pair that is seen; of full: all its pairs are.
struct TileScan {
    int first = 0; // a multiple of 1024
    u32 active = 0, full = 0;
    // The run at hand: tiles that follow each other, whose bits lie in one word, and that are all full or none of them. Twice the
    // lowest, and one if they are full: registers are scarce.
    int run = 0;
@ local keeps = plan.family == "wgmma" and #mask.own > 0
@ if keeps then
    u32 own; // where keep_own wrote
@ end
    __device__ __forceinline__ bool whole() const { return run & 1; }
};

@ local fits_q, fits_k = mask.block_q % plan.block_m == 0, mask.block_k % plan.block_n == 0
@ -- How many blocks a tile has; 0: they do not fit. Each is asked about where hashes or arrays of what is walked over leave intervals nothing to
@ -- say (gen/tiles.c decides likewise); but a row of a table, of which 32 are one word.
@ local function parts(block, tile) return (block == 0 or block % tile == 0) and 1 or tile % block == 0 and tile // block or 0 end
@ local parts_q, parts_k = parts(mask.block_q, plan.block_m), parts(mask.block_k, plan.block_n)
@ local by_blocks = mask.in_blocks and mask["open_" .. walk] and (walk == "q" or mask.long_walk and not problem.joins_heads)
@ by_blocks = by_blocks and parts_q * parts_k >= 1 and parts_q * parts_k <= 4
@ -- Blocks that share a tile are asked about one by one where of several at once the residual says nothing (gen/tiles.c decides likewise), and
@ -- where rows of blocks that tiles fit into are moved by the diagonal; not of a long walk, as registers are scarce and tiles mostly lie within one.
@ -- The last of the block in which x lies, as C++; nil: blocks are not asked about by themselves.
@ local least_part, last_of = 16, {}
@ local function last_of_block(size, moved)
@   if size < least_part then return nil end
@   if size & size - 1 == 0 then return moved and "(x + at.diag | " .. size - 1 .. ") - at.diag" or "x | " .. size - 1 end
@   return "x + " .. size - 1 .. " - (x" .. (moved and " + (at.diag % " .. size .. " + " .. size .. ")" or "") .. ") % " .. size
@ end
@ local alike = mask.in_blocks and not by_blocks and not mask.long_walk and plan.family == "wgmma" and fits_q and fits_k
@ if mask.in_blocks and not alike and not by_blocks then
@   local moved = mask.uses.diag
@   if fits_q and moved and not mask.long_walk and (fits_k or mask.open_q) or not fits_q and mask.open_q then last_of.q = last_of_block(mask.block_q, moved) end
@   if not fits_k and mask.open_k then last_of.k = last_of_block(mask.block_k, false) end
@ end
@ local last_own, last_walked = not problem.joins_heads and last_of[own], last_of[walk]
@ if mask.words then
// What is known of tile n: seen_some and seen_all.
__device__ __forceinline__ u32 seen_of(int n, const Params &p, const Where &at) {
@   if walk == "k" then
    return seen_of_tile(p, at.b, at.h, at.q_first, at.q_last, n);
@   else
    return seen_of_tile(p, at.b, at.h, n * block_m, min(n * block_m + block_m, at.seqlen_q) - 1, u32(at.k_first) / block_n);
@   end
}

// Each lane looks up one of 32 tiles.
__device__ __forceinline__ void scan_tiles(TileScan &scan, int first, const TileRange &tiles, const Params &p, const Where &at) {
    const int lane = threadIdx.x % 32;
    scan.first = first;
    scan.active = scan.full = 0;
#pragma unroll 1
    for (int word = max(tiles.begin - first, 0) / 32; word < 32 && first + 32 * word < tiles.end; ++word) {
        const int n = first + 32 * word + lane;
        const u32 seen = n >= tiles.begin && n < tiles.end ? seen_of(n, p, at) : 0;
        const u32 active = __ballot_sync(full_warp, seen & seen_some);
        const u32 full = __ballot_sync(full_warp, n >= tiles.full_begin && n < tiles.full_end && seen & seen_all);
        if (lane == word) scan.active = active, scan.full = full;
    }
}

@ else
// What the residual says of some queries and keys.
__device__ __forceinline__ Interval residual_within(Interval q_iv, Interval k_iv, const Params &p, const Where &at) {
@   scalars("_iv")
    return $(mask.residual);
}

@ if keeps then
// Hashes of a tile's rows are the same for all tiles of keys, and registers are scarce: they are worked out once, and wait in shared memory.
__device__ __forceinline__ void keep_interval(u32 to, Interval x) {
    if (threadIdx.x % 32 == 0) st_shared_v2(to, u32(x.lo), u32(x.hi));
}
__device__ __forceinline__ Interval kept_interval(u32 from) {
    const uint2 x = ld_shared_v2(from);
    return {int(x.x), int(x.y)};
}
__device__ __forceinline__ void keep_own(u32 to, const Params &p, const Where &at) {
    const Interval q_iv = $(own_iv);
@   scalars("_iv")
    __syncwarp(); // all lanes have read those of the rows before
@   for i, term in ipairs(mask.own) do
    keep_interval(to + $(8 * (i - 1)), $(term));
@   end
    __syncwarp();
}

// The residual of some keys and the rows that these are of.
__device__ __forceinline__ Interval residual_over_own(u32 from, Interval q_iv, Interval k_iv, const Params &p, const Where &at) {
@   scalars("_iv")
@   local function kept(i) return "kept_interval(from + " .. 8 * i .. ")" end
@   local over_own = mask.over_own:gsub("%f[%w_]own(%d)_iv%f[^%w_]", kept)
    return $(over_own); // each is read where it is needed
}

@ end
// What it says of the pairs of tiles first to last.
@ local within, rest = keeps and "within(" or "residual_within(", keeps and ")" or ", p, at)"
@ if keeps then
template <class Within> __device__ __forceinline__ Interval residual_by(const Within &within, int first, int last, const Params &p, const Where &at) {
@ else
__device__ __forceinline__ Interval residual_of(int first, int last, const Params &p, const Where &at) {
@ end
    const Interval own = $(own_iv);
@ if plan.family == "wgmma" then -- in 32 bits, as far as there are such tiles
    const Interval walked = {int(u32(first) * $(walk_block)), int(min(u32(last) * $(walk_block) + ($(walk_block) - 1), u32(at.seqlen_$(walk) - 1)))};
@ else
    const Interval walked = {i64(first) * $(walk_block), min(i64(last + 1) * $(walk_block), i64(at.seqlen_$(walk))) - 1};
@ end
@ if last_walked then -- of a single tile: of more there are many blocks
    bool some = false, all = true;
#pragma unroll 1
    for (int x = int(walked.lo); x <= int(walked.hi) && (all || !some);) {
        const int x_last = first == last ? min($(last_walked), int(walked.hi)) : int(walked.hi);
        const Interval part = {x, x_last}, keep = $(within .. (walk == "k" and "own, part" or "part, own") .. rest);
        some |= keep.hi != 0, all &= keep.lo == 1;
        x = x_last + 1;
    }
    return {all, some};
@ else
    return $(within .. (walk == "k" and "own, walked" or "walked, own") .. rest);
@ end
}
@ if keeps then
__device__ __forceinline__ Interval residual_of(int first, int last, const Params &p, const Where &at) {
    return residual_by([&](Interval q_iv, Interval k_iv) { return residual_within(q_iv, k_iv, p, at); }, first, last, p, at);
}
__device__ __forceinline__ Interval residual_of(int first, int last, const Params &p, const Where &at, u32 own) {
    return residual_by([&](Interval q_iv, Interval k_iv) { return residual_over_own(own, q_iv, k_iv, p, at); }, first, last, p, at);
}
@ end

@ if by_blocks then
@   include("piece/scan_blocks.cu", { parts_q = parts_q, parts_k = parts_k, scalars = scalars })

@ end
@ if last_own then
// Calls visit(rows) with each part of the CTA's own tile that lies in a block of its own.
template <class F> __device__ __forceinline__ void for_parts(const Where &at, const F &visit) {
    Where rows = at;
#pragma unroll 1
    for (int x = at.$(own)_first; x <= at.$(own)_last;) {
        rows.$(own)_first = x, rows.$(own)_last = min($(last_own), at.$(own)_last);
        visit(rows);
        x = rows.$(own)_last + 1;
    }
}

@ end
@ if alike then
// A tile lies within one block, of which one pair says all; within two, where blocks count by position, and the diagonal is within one.
@   local within = mask.uses.diag and mask.block_q > 0 and "at.diag % " .. mask.block_q .. " == 0" or "true"
__device__ __forceinline__ bool within_blocks(const Where &at) { return $(within); }

__device__ __forceinline__ bool is_seen(int n, const Params &p, const Where &at, bool last = false) {
    const u32 begin = u32(n) * $(walk_block);
@   if walk == "k" then
    const int q = last ? at.q_last : at.q_first, k = int(min(begin, u32(at.seqlen_k - 1)));
@   else
    const int q = int(min(last ? begin + ($(walk_block) - 1) : begin, u32(at.seqlen_q - 1))), k = at.k_first;
@   end
@   scalars("")
    return $(mask.residual_keep);
}

// Of few words all tiles are asked about at once.
__device__ __forceinline__ bool asks_words(int first, const TileRange &tiles, const Where &at) {
    return !within_blocks(at) || tiles.end - first > 8 * 32;
}

// Each lane asks first about its 32 tiles at once; then all lanes together, one tile each, about the words of which that left something
// open.
__device__ __forceinline__ void scan_tiles(TileScan &scan, int first, const TileRange &tiles, const Params &p, const Where &at) {
    const int lane = threadIdx.x % 32, word_first = first + 32 * lane;
    const int begin = max(word_first, tiles.begin), end = min(word_first + 32, tiles.end);
    const bool within = within_blocks(at);
    scan.first = first;
    scan.active = scan.full = 0;
    u32 open = __ballot_sync(full_warp, begin < end);
    if (asks_words(first, tiles, at)) {
        const Interval keep = residual_of(begin, end - 1, p, at);
        const bool whole = word_first >= tiles.full_begin && word_first + 32 <= tiles.full_end && keep.lo == 1;
        if (whole) scan.active = scan.full = full_warp;
        open &= __ballot_sync(full_warp, !whole && keep.hi != 0);
    }
#pragma unroll 1
    while (open) {
        const int word = __ffs(open) - 1, n = first + 32 * word + lane;
        open &= open - 1;
        bool some = is_seen(n, p, at), all = some;
        if (!within) {
            const bool last = is_seen(n, p, at, true);
            some |= last, all &= last;
        }
        const u32 active = __ballot_sync(full_warp, n >= tiles.begin && n < tiles.end && some);
        const u32 full = __ballot_sync(full_warp, n >= tiles.full_begin && n < tiles.full_end && all);
        if (lane == word) scan.active = active, scan.full = full;
    }
}

@ elseif not by_blocks then
// A read of the mask's arrays is waited for, so each lane asks first about its 32 tiles at once; then all lanes together, one
// tile each, about the words of which that left something open.
__device__ __forceinline__ void $(last_own and "scan_part" or "scan_tiles")(TileScan &scan, int first, const TileRange &tiles, const Params &p, const Where &at) {
    const int lane = threadIdx.x % 32, word_first = first + 32 * lane;
    const int begin = max(word_first, tiles.begin), end = min(word_first + 32, tiles.end);
    scan.first = first;
@   local own_terms = keeps and ", scan.own" or ""
    u32 open = 0;
    int word = -1, n = begin, last = end - 1;
#pragma unroll 1
    for (;;) { // the residual's text is there once: it may be long, and registers are scarce
@   if plan.operands == "e4m3" then -- most so here: nothing of the rows is kept from one turn to the next
        Where rows = at;
        rows.q_first = opaque(at.q_first), rows.q_last = opaque(at.q_last);
        const Interval keep = residual_of(n, last, p, rows$(own_terms));
@   else
        const Interval keep = residual_of(n, last, p, at$(own_terms));
@   end
        if (word < 0) {
            const bool whole = word_first >= tiles.full_begin && word_first + 32 <= tiles.full_end && keep.lo == 1;
            scan.active = scan.full = whole ? full_warp : 0;
            open = __ballot_sync(full_warp, begin < end && !whole && keep.hi != 0);
        } else {
            const u32 active = __ballot_sync(full_warp, n >= tiles.begin && n < tiles.end && keep.hi != 0);
            const u32 full = __ballot_sync(full_warp, n >= tiles.full_begin && n < tiles.full_end && keep.lo == 1);
            if (lane == word) scan.active = active, scan.full = full;
        }
        if (!open) break;
        word = __ffs(open) - 1;
        open &= open - 1;
        n = last = first + 32 * word + lane;
    }
}

@   if last_own then
// Tiles that some part sees, and those that all see whole.
__device__ __forceinline__ void scan_tiles(TileScan &scan, int first, const TileRange &tiles, const Params &p, const Where &at) {
    scan.first = first;
    scan.active = 0, scan.full = full_warp;
    for_parts(at, [&](const Where &rows) {
        TileScan part;
@   if keeps then
        part.own = scan.own;
        keep_own(part.own, p, rows);
@   end
        scan_part(part, first, tiles, p, rows);
        scan.active |= part.active, scan.full &= part.full;
    });
}

@   end
@ end
@ end
@ if mask.residual and not mask.words and walk == "q" and problem.deterministic then
// Whether scan_tiles finds tile n, also where an interval is wrong (of an array that is not sorted as it is said to be): whoever waits for
// a tile that is not visited would wait for ever.
__device__ __forceinline__ bool is_visited(int n, const TileRange &tiles, const Params &p, const Where &at) {
    const int word = n & ~31;
    const auto visited = [&](const Where &rows) {
@   if by_blocks then
        return seen_of_blocks(n, p, rows).some;
@   else
@   if alike then
        if (asks_words(n & ~1023, tiles, rows)) {
@   end
        const Interval keep = residual_of(max(word, tiles.begin), min(word + 32, tiles.end) - 1, p, rows);
        if (keep.lo == 1 && word >= tiles.full_begin && word + 32 <= tiles.full_end) return true;
        if (keep.hi == 0) return false;
@   if alike then
        }
        return is_seen(n, p, rows) || (!within_blocks(rows) && is_seen(n, p, rows, true));
@   else
        return residual_of(n, n, p, rows).hi != 0;
@   end
@   end
    };
@   if last_own then
    bool any = false;
    for_parts(at, [&](const Where &rows) { any = any || visited(rows); });
    return any;
@   else
    return visited(at);
@   end
}

@ end
@ if mask.residual and not mask.words and mask.unlike then
// Of tiles first to last, of which a pattern says the same, what scan_tiles finds.
__device__ __forceinline__ bool any_seen(int first, int last, const Params &p, const Where &at) {
@   if by_blocks then
    return seen_of_blocks(first, p, at).some;
@   elseif alike then
    return is_seen(first, p, at) || (!within_blocks(at) && is_seen(first, p, at, true));
@   elseif last_own then
    bool any = false;
    for_parts(at, [&](const Where &rows) { any = any || residual_of(first, last, p, rows).hi != 0; });
    return any;
@   else
    return residual_of(first, last, p, at).hi != 0;
@   end
}

@ end
@ if walk == "q" and mask.leading_rows > 0 then
// Of those scanned, of which some are active.
__device__ __forceinline__ int lowest_tile(const TileScan &scan) {
    const int word = __ffs(__ballot_sync(full_warp, scan.active != 0)) - 1;
    return scan.first + 32 * word + __ffs(__shfl_sync(full_warp, scan.active, word)) - 1;
}

__device__ __forceinline__ void drop_below(TileScan &scan, int tile) {
    const int below = tile - scan.first - 32 * int(threadIdx.x % 32);
    const u32 rest = below >= 32 ? 0 : full_warp << max(below, 0);
    scan.active &= rest, scan.full &= rest;
}

@ end
// Goes on to the next run below tile n, of those scanned. Returns its first tile, the highest; -1 when there is none.
__device__ __forceinline__ int next_run(TileScan &scan, int n) {
    const int below = n - scan.first - 32 * int(threadIdx.x % 32); // as many bits of the lane's word are below n
    const u32 rest = below <= 0 ? 0 : scan.active & full_warp >> max(32 - below, 0);
    const u32 words = __ballot_sync(full_warp, rest != 0);
    if (!words) return -1;
    const int word = 31 - __clz(words);
    const u32 active = __shfl_sync(full_warp, rest, word), full = __shfl_sync(full_warp, scan.full, word);
    const int top = 31 - __clz(active);
    const bool whole = full >> top & 1;
    const u32 alike = (whole ? full : active & ~full) << (31 - top);
    const int first = scan.first + 32 * word + top;
    scan.run = 2 * (first + 1 - __clz(~alike)) + whole;
    return first;
}

// The next tile to visit below tile n, of those scanned; -1 when there is none.
__device__ __forceinline__ int next_tile(TileScan &scan, int n) { return n > scan.run >> 1 ? n - 1 : next_run(scan, n); }

// Scans from tile end - 1 down until there is a tile to visit; -1 when there is none.
__device__ __forceinline__ int find_tile(TileScan &scan, int end, const TileRange &tiles, const Params &p, const Where &at) {
    int n = -1;
    for (; n < 0 && end > tiles.begin; end = scan.first) {
        scan_tiles(scan, (end - 1) / 1024 * 1024, tiles, p, at);
        n = next_run(scan, scan.first + 1024);
    }
    return n;
}
