@ -- A CTA owns one tile of queries and walks over tiles of keys, or the other way round.
@ local own, own_block, walk_block = "q", "block_m", "block_n"
@ if walk == "q" then own, own_block, walk_block = "k", "block_n", "block_m" end
@ local score_block = walk == "q" and plan.family == "wgmma" and "part_m" or walk_block -- what accumulators of scores hold
@ local own_iv = "{at." .. own .. "_first, at." .. own .. "_last}"
@ if problem.joins_heads then own_iv = "{row_query(p, at.q_first), row_query(p, at.q_last)}" end
@ local function scalars(form) include("piece/mask_scalars.cu", { form = form, wants = function() return true end }) end
@ if walk == "k" and plan.family == "wgmma" then
// The first key of tile n.
__device__ __forceinline__ int tile_key(const Where &at, int n) { return $(mask.shifts and "at.k_first + " or "")$(plan.parts and "(at.first_tile + n)" or "n") * block_n; }
// The same as at.seqlen_k counts keys, which are a part's alone.
__device__ __forceinline__ int own_key(const Where &at, int n) { return $(plan.parts and "n * block_n" or "tile_key(at, n)"); }

@ end
// The tiles that this CTA walks over: [begin, end) may hold a pair of query and key that is seen; in [full_begin, full_end) all
// pairs are, and these tiles carry no mask.
struct TileRange {
    int begin, full_begin, full_end, end;
};

__device__ __forceinline__ TileRange tile_range(const Params &p, const Where &at) {
@ if walk == "k" and #mask.upper + #mask.lower == 0 then
    return {0, 0, int(u32(at.seqlen_k) / block_n), int((u32(at.seqlen_k) + (block_n - 1)) / block_n)};
@ else
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
@ if mask.shifts then
    any_lo -= at.k_first, any_hi -= at.k_first, all_lo -= at.k_first, all_hi -= at.k_first;
@ end
@ if own == "k" and problem.seqused_k then
    if (at.k_first > at.k_last) return tiles; // no key of the tile is used
@ end
    tiles.begin = int(any_lo / $(walk_block));
    tiles.end = int(any_hi / $(walk_block)) + 1;
    tiles.full_begin = int(min(max((all_lo + $(walk_block) - 1) / $(walk_block), i64(tiles.begin)), i64(tiles.end)));
    tiles.full_end = int(max(min((all_hi + 1) / $(walk_block), i64(tiles.end)), i64(tiles.full_begin)));
    return tiles;
@ end
}

@ if mask.words then
@   include("piece/seen_tiles.cu", { scalars = scalars })

@ end
@ if mask.residual then
// What the bounds leave over is classified 1024 tiles at a time: a lane holds a word for 32 of them. Bit i of active: tile
// first + 32 * lane + i may hold a pair that is seen; of full: all its pairs are.
struct TileScan {
    int first = 0; // a multiple of 1024
    u32 active = 0, full = 0;
    // The run at hand: tiles that follow each other, whose bits lie in one word, and that are all full or none of them. Twice the
    // lowest, and one if they are full: registers are scarce.
    int run = 0;
    __device__ __forceinline__ bool whole() const { return run & 1; }
};

@ local own_rows, walked_rows = mask["block_" .. own], mask["block_" .. walk]
@ local fits_q, fits_k = mask.block_q % plan.block_m == 0, mask.block_k % plan.block_n == 0
@ local alike = mask.in_blocks and not mask.long_walk and plan.family == "wgmma" and fits_q and fits_k
@ -- Blocks that share a tile are asked about one by one where of several at once the residual says nothing (gen/tiles.c decides likewise), and
@ -- where rows of blocks that tiles fit into are moved by the diagonal; not of a long walk, as registers are scarce and tiles mostly lie within one.
@ -- The last of the block in which x lies, as C++; nil: blocks are not asked about by themselves.
@ local least_part, last_of = 8, {}
@ local function last_of_block(size, moved)
@   if size < least_part then return nil end
@   if size & size - 1 == 0 then return moved and "(x + at.diag | " .. size - 1 .. ") - at.diag" or "x | " .. size - 1 end
@   return "x + " .. size - 1 .. " - (x" .. (moved and " + (at.diag % " .. size .. " + " .. size .. ")" or "") .. ") % " .. size
@ end
@ if mask.in_blocks and not alike then
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

// What it says of the pairs of tiles first to last.
__device__ __forceinline__ Interval residual_of(int first, int last, const Params &p, const Where &at) {
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
        const Interval part = {x, x_last}, keep = residual_within($(walk == "k" and "own, part" or "part, own"), p, at);
        some |= keep.hi != 0, all &= keep.lo == 1;
        x = x_last + 1;
    }
    return {all, some};
@ else
    return residual_within($(walk == "k" and "own, walked" or "walked, own"), p, at);
@ end
}

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

// Each lane asks first about its 32 tiles at once; then all lanes together, one tile each, about the words of which that left something
// open. Of few words all are asked about at once.
__device__ __forceinline__ void scan_tiles(TileScan &scan, int first, const TileRange &tiles, const Params &p, const Where &at) {
    constexpr int few = 8 * 32;
    const int lane = threadIdx.x % 32, word_first = first + 32 * lane;
    const int begin = max(word_first, tiles.begin), end = min(word_first + 32, tiles.end);
    const bool within = within_blocks(at);
    scan.first = first;
    scan.active = scan.full = 0;
    u32 open = __ballot_sync(full_warp, begin < end);
    if (!within || tiles.end - first > few) {
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

@ else
// A read of the mask's arrays is waited for, so each lane asks first about its 32 tiles at once; then all lanes together, one
// tile each, about the words of which that left something open.
__device__ __forceinline__ void $(last_own and "scan_part" or "scan_tiles")(TileScan &scan, int first, const TileRange &tiles, const Params &p, const Where &at) {
    const int lane = threadIdx.x % 32, word_first = first + 32 * lane;
    const int begin = max(word_first, tiles.begin), end = min(word_first + 32, tiles.end);
    scan.first = first;
    u32 open = 0;
    int word = -1, n = begin, last = end - 1;
#pragma unroll 1
    for (;;) { // the residual's text is there once: it may be long, and registers are scarce
@   if plan.operands == "e4m3" then -- most so here: nothing of the rows is kept from one turn to the next
        Where rows = at;
        rows.q_first = opaque(at.q_first), rows.q_last = opaque(at.q_last);
        const Interval keep = residual_of(n, last, p, rows);
@   else
        const Interval keep = residual_of(n, last, p, at);
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
        scan_part(part, first, tiles, p, rows);
        scan.active |= part.active, scan.full &= part.full;
    });
}

@   end
@ end
@ end
@ if mask.residual and not mask.words and walk == "q" and problem.deterministic then
// Whether scan_tiles finds tile n: it asks of a word of 32 tiles, then of the tile.
__device__ __forceinline__ bool is_visited(int n, const TileRange &tiles, const Params &p, const Where &at) {
@   if alike then
    return is_seen(n, p, at) || (!within_blocks(at) && is_seen(n, p, at, true));
@   else
    const auto visited = [&](const Where &rows) {
        const Interval keep = residual_of(max(n & ~31, tiles.begin), min((n & ~31) + 32, tiles.end) - 1, p, rows);
        return keep.hi != 0 && residual_of(n, n, p, rows).hi != 0;
    };
@     if last_own then
    bool any = false;
    for_parts(at, [&](const Where &rows) { any = any || visited(rows); });
    return any;
@     else
    return visited(at);
@     end
@   end
}

@ end
@ if mask.residual and not mask.words and mask.unlike then
// Of tiles first to last, of which a pattern says the same, what scan_tiles finds.
__device__ __forceinline__ bool any_seen(int first, int last, const Params &p, const Where &at) {
@   if alike then
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

@ end
@ local reads_row = mask.uses[own] or mask.uses.h or walk == "q"
@ local index = problem.joins_heads and "row_query(p, row)" or "row"
@ local function inside(name, i) return mask.reads_along[name] and "min(" .. i .. ", at.seqlen_" .. name .. " - 1)" or i end
@ local function row_place() -- of rows g and g + 8 of atom m
@   if reads_row then
                const int row = first + 16 * m + 8 * r;
@   end
@   if mask.uses[own] then
                const int $(own) = $(inside(own, index));
@   end
@   if problem.joins_heads and mask.uses.h then
                const int h = row_head(p, at, row);
@   end
@ end
@ -- Where a sum has no carries, |, from which the compiler sees that such as k >> 5 is the same for many keys: it is read once,
@ -- and what a pattern says of a block is computed once.
@ local share, place = walk == "k" and plan.block_n or (plan.family == "wgmma" and 64 or plan.block_m) // layout.col_warps, walk
@ if share & share - 1 == 0 and not mask.reads_along[walk] then
@   place = "n * " .. score_block .. " + warp_col() | 8 * (i / 2) | 2 * (lane % 4) | i % 2"
@ end
@ -- Rows of elements that wait beside the tiles of q and k (piece/mask_rows.cu).
@ local staged, others = { q = {}, k = {} }, {}
@ if mask.runs then staged.q = { { name = "first_key_array", type = "int" }, { name = "last_key_array", type = "int" } } end
@ for _, array in ipairs(arrays) do
@   if plan.family == "wgmma" and walk == "k" and array.mask_row ~= "" then table.insert(staged[array.mask_row], array)
@   elseif mask.residual and mask.residual_keep:find("%f[%w_]" .. array.name .. "_at%f[^%w_]") then table.insert(others, array) end
@ end
@ -- Products in flight leave few registers for reads: the keys go by in a loop, few at a time, and leave a bit each.
@ -- So do long patterns: their text is there once, as tiles of their blocks need no element test but at a sequence's end.
@ local long = mask.residual and mask.long_walk
@ -- Of a tile within one block of keys a row is seen or not: that is asked once.
@ local by_row = mask.residual and walk == "k" and mask.block_k % plan.block_n == 0 and #staged.q + #staged.k == 0
@ local in_bits = not by_row and (#others > 0 or long) and plan.family == "wgmma" and walk == "k"
@ local at_once = long and 1 or plan.consumers == 3 and 4 or 16
@ if mask.words and plan.family == "wgmma" then
@   include(walk == "k" and "piece/mask_words.cu" or "piece/mask_words_backward.cu", { reads_row = reads_row, scalars = scalars, row_place = row_place })
@   return
@ end
@ -- Of a row's bounds those with divisions are worked out once, and not for each element, as the compiler would.
@ local upper_at, lower_at, divided = {}, {}, {}
@ for _, side in ipairs { { name = "upper", bounds = mask.upper_at, at = upper_at }, { name = "lower", bounds = mask.lower_at, at = lower_at } } do
@   for i, bound in ipairs(side.bounds) do
@     side.at[i] = bound
@     if bound:find("div_or_0", 1, true) or bound:find("mod_or_0", 1, true) then
@       side.at[i] = side.name .. "_" .. i .. "[m][r]"
@       table.insert(divided, { name = side.name .. "_" .. i, bound = bound })
@     end
@   end
@ end
@ -- Bounds as distances from the lane's first key, which then are compared with constants.
@ local by_distance = plan.family == "wgmma" and walk == "k"
@ local bits = plan.block_n > 128 and "u64" or "u32"
// Sets the scores of unseen pairs of tile n$(score_block ~= walk_block and " (of part_m queries)" or "") to -inf: $(walk) by $(walk), so that what the mask reads there is read once for all rows
// and kept no longer.
__device__ __forceinline__ void mask_tile(float (&s)[m_atoms][s_atoms][4], int n, const Params &p, const Where &at$(#staged.q > 0 and ", u32 q_rows" or "")$(#staged.k > 0 and ", u32 k_rows" or "")) {
    const int lane = $(in_bits and "opaque(int(threadIdx.x))" or "threadIdx.x") % 32;
@ if reads_row then
    const int first = opaque(at.$(own)_first) + warp_row() + lane / 4;
@ end
@ scalars("")
@ if by_distance then
    const int first_k = own_key(at, n) + 2 * (lane % 4);
@ end
@ for j, array in ipairs(staged.q) do
    u32 $(array.name)_element[m_atoms][2];
#pragma unroll
    for (int m = 0; m < m_atoms; ++m)
#pragma unroll
        for (int r = 0; r < 2; ++r)
            $(array.name)_element[m][r] = ld_shared_u32(q_rows + 4 * ($(j - 1) * block_m + warp_row() + 16 * m + 8 * r + lane / 4));
@ end
@ for _, array in ipairs(staged.k) do
    uint4 $(array.name)_element; // of the keys of two atoms that the lane holds
@ end
@ if in_bits then
    $(bits) seen[m_atoms][2] = {}; // the last key's bit is the highest
@ end
@ if by_row then
    bool row_seen[m_atoms][2];
#pragma unroll
    for (int m = 0; m < m_atoms; ++m)
#pragma unroll
        for (int r = 0; r < 2; ++r) {
            const int k = n * block_n;
@   row_place()
            row_seen[m][r] = $(mask.residual_keep);
        }
@ end
@ if #divided > 0 then
@   for _, b in ipairs(divided) do
    int $(b.name)[m_atoms][2];
@   end
#pragma unroll
    for (int m = 0; m < m_atoms; ++m)
#pragma unroll
        for (int r = 0; r < 2; ++r) {
@   row_place()
@   for _, b in ipairs(divided) do
            $(b.name)[m][r] = $(b.bound);
@   end
        }
@ end
#pragma unroll$(in_bits and " " .. at_once or "")
    for (int i = 0; i < s_atoms * 2; ++i) {
@ if by_distance then
        const int distance = 8 * (i / 2) + i % 2, k = first_k + distance;
@ else
        const int $(walk) = n * $(score_block) + warp_col() + 8 * (i / 2) + 2 * (lane % 4) + i % 2;
@ end
@ for j, array in ipairs(staged.k) do
        if (i % 4 == 0) $(array.name)_element = ld_shared_v4(k_rows + 4 * ($(j - 1) * block_n + 4 * i + 4 * (lane % 4)));
@ end
#pragma unroll
        for (int m = 0; m < m_atoms; ++m)
#pragma unroll
            for (int r = 0; r < 2; ++r) {
@ row_place()
@ for _, array in ipairs(staged.q) do
                const auto $(array.name)_at = [&](const Params &, auto...) { return $(array.type == "float" and "__uint_as_float" or "int")($(array.name)_element[m][r]); };
@ end
@ if walk == "k" then
                int k_max = at.seqlen_k - 1;
@ else
                int q_max = row < at.seqlen_k ? 0x7fffffff : -1;
@ end
@ for _, bound in ipairs(upper_at) do
                $(walk)_max = min($(walk)_max, $(bound));
@ end
                bool keep = $(by_distance and "distance <= max(k_max, -1) - first_k" or walk .. " <= " .. walk .. "_max");
@ for _, bound in ipairs(lower_at) do
                keep = keep && $(by_distance and "distance >= max(" .. bound .. ", 0) - first_k" or walk .. " >= " .. bound);
@ end
@ for _, array in ipairs(staged.k) do
@   local element = array.name .. "_element"
                const u32 $(array.name)_bits = i % 4 == 0 ? $(element).x : i % 4 == 1 ? $(element).y : i % 4 == 2 ? $(element).z : $(element).w;
                const auto $(array.name)_at = [&](const Params &, auto...) { return $(array.type == "float" and "__uint_as_float" or "int")($(array.name)_bits); };
@ end
@ if by_row then
                keep = keep && row_seen[m][r];
@ elseif mask.residual and (mask.reads or mask.in_blocks) then
                const auto residual_keep = [&](int $(walk)) { return $(mask.residual_keep); };
                keep = keep & residual_keep($(inside(walk, place))); // no branch, so that what is the same is done once
@ elseif mask.residual then
                keep = keep && ($(mask.residual_keep));
@ end
@ if in_bits then
                seen[m][r] = seen[m][r] >> 1 | (keep ? $(bits)(1) << (8 * sizeof($(bits)) - 1) : 0);
            }
    }
#pragma unroll
    for (int i = 0; i < s_atoms * 2; ++i)
#pragma unroll
        for (int m = 0; m < m_atoms; ++m)
#pragma unroll
            for (int r = 0; r < 2; ++r)
                if (!(seen[m][r] >> (8 * sizeof($(bits)) - s_atoms * 2 + i) & 1)) s[m][i / 2][2 * r + i % 2] = NEG_INF;
}
@ else
                if (!keep) s[m][i / 2][2 * r + i % 2] = NEG_INF;
            }
    }
}
@ end
