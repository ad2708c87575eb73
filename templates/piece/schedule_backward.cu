@ local sliced = problem.slices > 1 and not plan.halved -- those of a tile are neighbours in x
@ local function without_slice(x) return sliced and ("(int(%s) / slices)"):format(x) or x end
// The key tile of this CTA, and what the mask may ask of it; b = -1: none, as there are superfluous $(plan.family == "wgmma" and "tiles" or "CTAs").
struct Where : Sequence {
    int h;               // query head, which changes while the CTA goes through the heads of its group
    int k_first, k_last; // keys of the tile that are used
@ if sliced then
    int slice; // of the columns of dK, dV and dQ
@ end
@ if mask.leading_rows > 0 then
    int split = -1;      // which part of the queries; -1: all
@ end
};

@ if plan.family == "wgmma" then
@   local waits = plan.adders and problem.deterministic -- tiles wait for those before them
@   local leads = mask.leading > 0 and (not problem.packed or mask.all_lead) and (mask.leading_rows > 0 or not waits) -- some tiles are claimed before all others
@   local heads, last_sees_all = plan.head_rows > 0, mask.q_order > 0
@   if heads then
@     leads, last_sees_all = false, not last_sees_all -- a CTA's own order: what sees most comes last, when dQ leaves
@   end
@   local by_pair = false
@   for _, array in ipairs(arrays) do
@     local d = array.declared
@     by_pair = by_pair or d:find("[q]", 1, true) and d:find("[k]", 1, true) and d:find("[h]", 1, true)
@   end
@   if heads then
// Tiles of keys of a head: of a packed sequence what it has, and one if it has none, with which its dQ leaves.
__device__ __forceinline__ int tiles_of_head(const Params &p, const Sequence &at) {
    return $(problem.packed and "max((at." .. (problem.seqused_k and "num_keys" or "seqlen_k") .. " + block_n - 1) / block_n, 1)" or "p.group_tiles");
}

// Tiles count through the heads, whose tiles a CTA goes through one after another: $(problem.packed and "as many as the longest sequence has" or "groups have one head"). kv_head is that of the batch.
@   else
// Tiles count through groups of heads whose queries share the L2 cache; within a group its heads go through their key tiles
// together, the longest first. The last group may have fewer heads. kv_head is that of the batch.
@   end
__device__ __forceinline__ Where tile_at(const Params &p, int index, int &kv_head) {
@   if heads then
    const int head = quotient(index, p.group_tiles, p.group_tiles_inverse), rank = index - head * p.group_tiles;
@   else
    const int group = quotient(index, p.group_tiles, p.group_tiles_inverse), in_group = index - group * p.group_tiles;
    const int heads_left = $(problem.packed and "p.num_heads_kv" or "p.batch * p.num_heads_kv") - group * p.kv_group_heads;
    const bool short_group = heads_left < p.kv_group_heads;
    const int heads = short_group ? heads_left : p.kv_group_heads;
    const int rank = quotient(in_group, heads, short_group ? p.last_kv_group_inverse : p.kv_group_inverse);
    const int head = group * p.kv_group_heads + in_group - rank * heads;
@   end
    Where at;
@   if heads and problem.packed then
    const int place = quotient(head, p.num_heads_kv, p.kv_heads_inverse);
    kv_head = head - place * p.num_heads_kv;
    static_cast<Sequence &>(at) = sequence(p, p.order[place]);
    const int tile = $(last_sees_all and "tiles_of_head(p, at) - 1 - rank" or "rank");
@   else
@     if last_sees_all then
    int tile = $(heads and "p.group_tiles" or "quotient(p.group_tiles, p.kv_group_heads, p.kv_group_inverse)") - 1 - rank;
@     else
    int tile = rank;
@     end
@     if problem.packed then
    kv_head = head;
    const int b = find_sequence<block_n>(p.cu_seqlens_k, p.batch, tile);
@     elseif by_pair then -- batch entries follow each other, which may share what is read for each pair, and add to the same gradient
    kv_head = head / p.batch;
    const int b = head - kv_head * p.batch;
@     else
    const int b = quotient(head, p.num_heads_kv, p.kv_heads_inverse);
    kv_head = head - b * p.num_heads_kv;
@     end
    static_cast<Sequence &>(at) = sequence(p, b);
@   end
@ -- Of the same head, which the compiler cannot know, there is one register: else the walk over parts of queries costs consumers spills.
    at.h = $(mask.leading_rows > 0 and not problem.gqa and "kv_head" or "kv_head * p.heads_per_kv");
    at.k_first = tile * block_n;
    at.k_last = min(at.k_first + block_n, at.seqlen_k) - 1;
@   if problem.packed and not heads then
    if (tile < 0 || at.k_first >= at.$(problem.seqused_k and "num_keys" or "seqlen_k")) at.b = -1;
@   end
    return at;
}

@   if mask.leading_rows > 0 then
@     include("piece/split_keys.cu")

@   end
@   if leads then
@     include("piece/leading.cu")

@   end
@   if heads then
// A CTA's tiles: all of a head, and then those of $(problem.packed and "its head in the next round" or "the head that is a grid further").
struct HeadTiles {
    int round = 0, place = 0;

    // The first tile of its head in this round$(problem.packed and ": there and back, as sequences come by their length" or "").
    __device__ __forceinline__ int head(const Params &p) const {
@ if problem.packed then
        const int in_round = round % 2 ? gridDim.x - 1 - blockIdx.x : blockIdx.x;
        return (round * gridDim.x + in_round) * p.group_tiles;
@ else
        return (round * gridDim.x + blockIdx.x) * p.group_tiles;
@ end
    }
    __device__ __forceinline__ int index(const Params &p) const { return head(p) + place; }
    __device__ __forceinline__ void next(const Params &p, const Sequence &at) {
        if (++place < tiles_of_head(p, at)) return;
        place = 0;
        ++round;
    }
};

// The place of a tile among those of its head.
__device__ __forceinline__ int place_in_head(const Params &p, int index) { return index - quotient(index, p.group_tiles, p.group_tiles_inverse) * p.group_tiles; }
@   elseif waits then
// CTAs claim tiles. All are counted, so that whoever has a tile runs, and with it all that it waits for.
__device__ __forceinline__ int claim_tile(const Params &p) { return atom_inc_u32(p.claims, 0x7fffffff); }
@   else
// $(plan.cluster > 1 and "Clusters" or "CTAs") claim tiles: the first is a $(plan.cluster > 1 and "cluster" or "CTA")'s own number, and those that follow are counted.
__device__ __forceinline__ int claim_tile(const Params &p) { return gridDim.x$(plan.cluster > 1 and " / " .. plan.cluster or "") + atom_inc_u32(p.claims, 0x7fffffff); }
@   end
@ elseif problem.packed then
// CTAs start in the order of x, then y, as in the forward kernel: groups of heads that share L2 (y), the tiles of all sequences,
// and within each the heads of the group (x).
__device__ __forceinline__ Where this_tile(const Params &p, int &kv_head) {
    const int index = $(without_slice(mask.q_order > 0 and "gridDim.x - 1 - blockIdx.x" or "blockIdx.x"));
    int tile = quotient(index, p.kv_group_heads, p.kv_group_inverse);
    Where at;
@   if sliced then
    at.slice = blockIdx.x % slices;
@   end
    kv_head = blockIdx.y * p.kv_group_heads + index - tile * p.kv_group_heads;
    const int b = find_sequence<block_n>(p.cu_seqlens_k, p.batch, tile);
    static_cast<Sequence &>(at) = sequence(p, b);
    at.h = kv_head * p.heads_per_kv;
    at.k_first = tile * block_n;
    at.k_last = min(at.k_first + block_n, at.seqlen_k) - 1;
    if (kv_head >= p.num_heads_kv || tile < 0 || at.k_first >= at.$(problem.seqused_k and "num_keys" or "seqlen_k")) at.b = -1; // the last group may be short
    return at;
}
@ else
@   local leads = mask.leading_rows > 0
@   if leads then
@     include("piece/part_of.cu")

@     include("piece/split_keys.cu")

@   end
@   local block = again and "block" or "blockIdx" -- again: a kernel's end asks once more (piece/place.cu)
// CTAs start in the order of x, then y, then z, as in the forward kernel: groups of heads that share L2 (z), their key tiles (y),
// the longest first, and the heads of the group (x). kv_head is that of the batch.
__device__ __forceinline__ Where this_tile(const Params &p, int &kv_head$(again and ", const Place &block = Place()" or "")) {
    const int head = $(block).z * $(without_slice("gridDim.x")) + $(without_slice(block .. ".x")), b = quotient(head, p.num_heads_kv, p.kv_heads_inverse);
    Where at;
@   if sliced then
    at.slice = $(block).x % slices;
@   end
    static_cast<Sequence &>(at) = sequence(p, $(problem.seqused_k and "min(b, p.batch - 1)" or "b"));
    if (b >= p.batch) at.b = -1;
    kv_head = head - b * p.num_heads_kv;
    at.h = kv_head * p.heads_per_kv;
@   if leads then
    int tile;
    at.split = part_of(p, $(block).y, tile);
    at.k_first = tile * block_n;
@   elseif mask.q_order > 0 then
    at.k_first = (gridDim.y - 1 - $(block).y) * block_n;
@   else
    at.k_first = $(block).y * block_n;
@   end
    at.k_last = min(at.k_first + block_n, at.seqlen_k) - 1;
    return at;
}
@ end
