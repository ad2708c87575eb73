@ local queries = plan.cluster > 1 and not plan.halved and plan.cluster .. " * block_m" or "block_m" -- of a tile
@ local by_pair = false
@ for _, array in ipairs(arrays) do by_pair = by_pair or (array.key_pairs or array.staged) and array.declared:find("[q]", 1, true) and array.declared:find("[h]", 1, true) end
// The query tile of this CTA, and what the mask may ask of it; b = -1: none, as there are superfluous tiles.
struct Where : Sequence {
    int h;               // query head
@ if problem.gqa then
    int kv_head; // once a tile: the compiler takes a division out of no loop, and this one delayed each copy of keys
@ end
    int q_first, q_last; // query rows of the tile that exist
@ if mask.leading_rows > 0 then
    int split;           // which part of the keys; -1: all
@ end
@ if plan.parts then
    int claim;      // which it is
    int first_tile; // of keys, that of its own: seqlen_k counts from there
@ end
@ if mask.shifts then
    int k_first; // where its tiles of keys begin: at the first key that its first query sees
@ end
@ if problem.kv_dtype == "e4m3" then
    float scale; // of its scores; claimed() sets it
@ end
};
@ if problem.kv_dtype == "e4m3" then

@   include("piece/descale.cu")
@ end

@ if mask.leading > 0 and not problem.packed then
@   include("piece/leading.cu")

@ end
// Tiles count through groups of heads whose keys and values share the L2 cache; within a group its heads go through their query
// tiles together, the longest first. The last group may have fewer heads. No number stands for nothing (but in packed sequences):
// CTAs claim their next tile while they compute one, and who claimed nothing would end up with less than its share.
@ if mask.leading_rows > 0 then
// From p.first_part on they are parts of the first tiles: of all heads those of the first tile, and so on.
@ end
__device__ __forceinline__ Where $(plan.parts and "whole_tile_at" or "tile_at")(const Params &p, int index) {
@ if mask.leading_rows > 0 then
    const int part = index - p.first_part, which = quotient(max(part, 0), p.num_splits, p.splits_inverse), of_split = part - which * p.num_splits;
    if (part >= 0) index = whole_tile(p, which);
@ end
    const int group = quotient(index, p.group_tiles, p.group_tiles_inverse), in_group = index - group * p.group_tiles;
    const int heads_left = $(problem.packed and "p.num_heads_q" or "p.batch * p.num_heads_q") - group * p.group_heads;
    const bool short_group = heads_left < p.group_heads;
    const int heads = short_group ? heads_left : p.group_heads;
    const int rank = quotient(in_group, heads, short_group ? p.last_group_inverse : p.group_inverse);
    const int head = group * p.group_heads + in_group - rank * heads;
    Where at;
@ if mask.q_order > 0 then
    int tile = quotient(p.group_tiles, p.group_heads, p.group_inverse) - 1 - rank;
@ else
    int tile = rank;
@ end
@ if problem.packed then
    at.h = head;
    const int b = find_sequence<block_m>(p.cu_seqlens_q, p.batch, tile);
    static_cast<Sequence &>(at) = sequence(p, b);
@ else
@   if by_pair then -- batch entries follow each other, which may share what is read for each pair
    at.h = head / p.batch;
    const int b = head - at.h * p.batch;
@   else
    const int b = quotient(head, p.num_heads_q, p.heads_inverse);
    at.h = head - b * p.num_heads_q;
@   end
    static_cast<Sequence &>(at) = sequence(p, b);
@ end
@ if problem.gqa then
    at.kv_head = at.h / p.heads_per_kv;
@ end
    at.q_first = tile * $(queries == "block_m" and queries or "(" .. queries .. ")");
    at.q_last = min(at.q_first + $(queries), at.seqlen_q) - 1;
@ if mask.leading_rows > 0 then
    at.split = part >= 0 ? of_split : -1;
@ end
@ if mask.shifts then
    at.k_first = first_key_array_at(p, b, at.q_first);
@ end
@ if problem.packed then
    if (tile < 0 || at.q_first > at.q_last) at.b = -1;
@ end
    return at;
}
@ if plan.parts then

@   include("piece/parts.cu")
@ end

@ include("piece/claims.cu")

// A place for each tile, from which those that must be computed once more are chained.
__device__ __forceinline__ int &next_redo(const Params &p, int tile) { return reinterpret_cast<int *>(p.claims + 2)[tile]; }
