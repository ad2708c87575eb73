@ -- A CTA owns one tile of queries and walks over tiles of keys, or the other way round.
@ local own, walk_block = "q", "block_n"
@ if walk == "q" then own, walk_block = "k", "block_m" end
@ local keys = plan.halved and plan.block_n // 2 or plan.block_n
@ local own_iv = "{at." .. own .. "_first, at." .. own .. "_last}"
@ if problem.joins_heads then own_iv = "{row_query(p, at.q_first), row_query(p, at.q_last)}" end
@ local function scalars(form) include("piece/mask_scalars.cu", { form = form, wants = function() return true end }) end
@ if walk == "k" and plan.family == "wgmma" then
// The first key of tile n.
__device__ __forceinline__ int tile_key(const Where &at, int n) { return $(mask.shifts and "at.k_first + " or "")$(plan.parts and "(at.first_tile + n)" or "n") * block_n; }
// The same as at.seqlen_k counts keys, which are a part's alone.
__device__ __forceinline__ int own_key(const Where &at, int n) { return $(plan.parts and "n * block_n" or "tile_key(at, n)"); }
@   if plan.halved then
// The same of half of a tile, n counting halves.
__device__ __forceinline__ int half_key(const Where &at, int n) { return $(mask.shifts and "at.k_first + " or "")n * half_n; }
@   end

@ end
// The tiles that this CTA walks over: [begin, end) may hold a pair of query and key that is seen; in [full_begin, full_end) all
// pairs are, and these tiles carry no mask.$(leads and " If there are such, those from full_end on have a key that all rows see." or "")
struct TileRange {
    int begin, full_begin, full_end, end;
};

__device__ __forceinline__ TileRange tile_range(const Params &p, const Where &at) {
@ if walk == "k" and #mask.upper + #mask.lower == 0 then
    return {0, 0, int(u32($(leads and "max(at.seqlen_k - 1, 0)" or "at.seqlen_k")) / block_n), int((u32(at.seqlen_k) + (block_n - 1)) / block_n)};
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
    tiles.full_end = int(max(min($(leads and "all_hi" or "(all_hi + 1)") / $(walk_block), i64(tiles.end)), i64(tiles.full_begin)));
    return tiles;
@ end
}

@ if mask.words then
@   include("piece/seen_tiles.cu", { scalars = scalars })

@ end
@ if mask.residual then
@   include("piece/scan_tiles.cu", { own = own, own_iv = own_iv, walk_block = walk_block, scalars = scalars })

@ end
@ local reads_row = mask.uses[own] or mask.uses.h or walk == "q"
@ local function inside(name, i) return mask.reads_along[name] and "min(" .. i .. ", at.seqlen_" .. name .. " - 1)" or i end
@ local function row_place() include("piece/mask_row.cu", { own = own }) end
@ -- Where a sum has no carries, |, from which the compiler sees that such as k >> 5 is the same for many keys: it is read once,
@ -- and what a pattern says of a block is computed once.
@ local share, place = walk == "k" and keys or plan.family == "wgmma" and layout.weigh_cols or plan.block_m // layout.col_warps, walk
@ if share & share - 1 == 0 and not mask.reads_along[walk] then
@   place = "n * " .. plan.score_block .. " + warp_col() | 8 * (i / 2) | 2 * (lane % 4) | i % 2"
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
@ local by_row = mask.residual and walk == "k" and mask.block_k % keys == 0 and #staged.q + #staged.k == 0
@ -- Of several blocks each is asked about once, where a pattern has hashes or arrays of them, or is long, or they are many: short ones cost
@ -- less by each lane, whose elements share what is the same.
@ local block = mask["block_" .. walk]
@ local dear = mask.open_q or mask.open_k or mask.long_walk or block > 0 and share // block >= 4
@ local by_block = mask.residual and mask.in_blocks and not by_row and dear and block >= 16 and #staged.q + #staged.k == 0
@ local in_bits = not by_row and not by_block and (#others > 0 or long) and plan.family == "wgmma" and walk == "k"
@ local at_once = long and 1 or plan.consumers == 3 and 4 or 16
@ if mask.words and plan.family == "wgmma" then
@   if walk == "k" then include("piece/mask_words.cu", { reads_row = reads_row, scalars = scalars, row_place = row_place })
@   else include("piece/mask_words_backward.cu", { scalars = scalars }) end
@   return
@ end
@ -- Bounds as distances from the lane's first key, which then are compared with constants.
@ local by_distance = plan.family == "wgmma" and walk == "k"
@ if by_distance and #mask.lower_at > 0 and not mask.residual then -- elsewhere it gains nothing, and makes kernels spill
@   include("piece/mask_range.cu", { staged_q = staged.q, scalars = scalars, reads_row = reads_row, row_place = row_place })
@   return
@ end
@ -- Of a row's bounds those with divisions are worked out once, and not for each element, as the compiler would.
@ local upper_at, lower_at, divided = {}, {}, {}
@ for _, side in ipairs { { name = "upper", bounds = mask.upper_at, at = upper_at }, { name = "lower", bounds = mask.lower_at, at = lower_at } } do
@   for i, bound in ipairs(side.bounds) do
@     side.at[i] = bound
@     if bound:find("div_", 1, true) or bound:find("mod_", 1, true) then
@       side.at[i] = side.name .. "_" .. i .. "[m][r]"
@       table.insert(divided, { name = side.name .. "_" .. i, bound = bound })
@     end
@   end
@ end
@ local bits = plan.block_n > 128 and "u64" or "u32"
@ if by_block then
@   include("piece/mask_blocks.cu", { own = own, share = share, block = block, base = by_distance and plan.score_key .. "(at, n)" or "n * " .. plan.score_block .. " + warp_col()",
@     scalars = scalars, reads_row = reads_row, row_place = row_place })

@ end
// Sets the scores of unseen pairs of tile n$(plan.score_block ~= walk_block and " (of part_m queries)" or "") to -inf: $(walk) by $(walk), so that what the mask reads there is read once for all rows
// and kept no longer.
__device__ __forceinline__ void mask_tile(float (&s)[m_atoms][s_atoms][4], int n, const Params &p, const Where &at$(#staged.q > 0 and ", u32 q_rows" or "")$(#staged.k > 0 and ", u32 k_rows" or "")) {
    const int lane = $(in_bits and "lane_anew()" or "threadIdx.x % 32");
@ if reads_row then
    const int first = opaque(at.$(own)_first) + warp_row() + lane / 4;
@ end
@ scalars("")
@ if by_distance then
    const int first_k = $(plan.score_key)(at, n) + 2 * (lane % 4);
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
            const int k = n * $(plan.score_block);
@   row_place()
            row_seen[m][r] = $(mask.residual_keep);
        }
@ end
@ if by_block then
    const SeenBlocks blocks(n, p, at);
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
        const int $(walk) = n * $(plan.score_block) + warp_col() + 8 * (i / 2) + 2 * (lane % 4) + i % 2;
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
@ elseif by_block then
                keep = keep && blocks.sees(m, r, i);
@ elseif mask.residual and (mask.reads or mask.in_blocks) then
                const auto residual_keep = [&](int $(walk)) { return $(mask.residual_keep); };
                keep = keep & residual_keep($(inside(walk, place))); // no branch, so that what is the same is done once
@ elseif mask.residual then
@   local also = mask.residual_keep:find("_by(", 1, true) and "&" or "&&" -- by a run-time value: a branch an element is dearer
                keep = keep $(also) ($(mask.residual_keep));
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
