@ -- What scan_tiles.cu has, for patterns with hashes or arrays of what is walked over: of several tiles intervals say nothing, so each is asked
@ -- about by its blocks, parts_q x parts_k, of which one pair says all: an element's predicate, in 32 bits.
struct Seen {
    bool some, all; // of a tile's pairs
};

@ local keep = mask.reads and mask.residual_keep or mask.residual_keep:gsub("||", "|") -- no branch: what does not wait for each other goes on together
@ if not mask.reads then keep = keep:gsub("&&", "&") end
__device__ __forceinline__ Seen seen_of_blocks(int n, const Params &p, const Where &at) {
    Seen seen = {false, true};
@ if walk == "k" then
    const int q_first = at.q_first, q_last = at.q_last, k_first = int(u32(n) * block_n), k_last = int(min(u32(k_first) + (block_n - 1), u32(at.seqlen_k - 1)));
@ else
    const int k_first = at.k_first, k_last = at.k_last, q_first = int(u32(n) * block_m), q_last = int(min(u32(q_first) + (block_m - 1), u32(at.seqlen_q - 1)));
@ end
    const auto ask = [&](int q) {
#pragma unroll
        for (int part = 0; part < $(parts_k); ++part) {
            const int k = min(k_first + part * $(parts_k > 1 and mask.block_k or 0), k_last);
@ scalars("")
            const bool keep = $(keep);
            seen.some |= keep, seen.all &= keep;
        }
    };
#pragma unroll
    for (int part = 0; part < $(parts_q); ++part) ask(min(q_first + part * $(parts_q > 1 and mask.block_q or 0), q_last));
@ if mask.uses.diag and mask.block_q > 0 then
    if (at.diag % $(mask.block_q) != 0) ask(q_last); // as blocks count by position, it has a piece of one more
@ end
    return seen;
}

@ local at_once = mask.reads and 4 // (parts_q * parts_k) or 1 -- a read is waited for longer than it takes
// All lanes together, $(at_once > 1 and at_once .. " tiles" or "one tile") each.
__device__ __forceinline__ void scan_tiles(TileScan &scan, int first, const TileRange &tiles, const Params &p, const Where &at) {
    const int lane = threadIdx.x % 32;
    scan.first = first;
    scan.active = scan.full = 0;
#pragma unroll 1
    for (int word = max(tiles.begin - first, 0) / 32; word < 32 && first + 32 * word < tiles.end; word += $(at_once)) {
        Seen seen[$(at_once)];
#pragma unroll
        for (int i = 0; i < $(at_once); ++i) seen[i] = seen_of_blocks(first + 32 * (word + i) + lane, p, at);
#pragma unroll
        for (int i = 0; i < $(at_once); ++i) {
            const int n = first + 32 * (word + i) + lane;
            const u32 active = __ballot_sync(full_warp, n >= tiles.begin && n < tiles.end && seen[i].some);
            const u32 full = __ballot_sync(full_warp, n >= tiles.full_begin && n < tiles.full_end && seen[i].all);
            if (lane == word + i) scan.active = active, scan.full = full;
        }
    }
}
