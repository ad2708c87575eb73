@ local sliced = problem.slices > 1 -- those of a tile are neighbours in x
@ local function without_slice(x) return sliced and ("(int(%s) / slices)"):format(x) or x end
// The query tile of this CTA, and what the mask may ask of it; b = -1: none, as there are superfluous CTAs.
struct Where : Sequence {
    int h;               // query head
    int q_first, q_last; // query rows of the tile that exist
@ if sliced then
    int slice; // of the columns of $(problem.op == "fwd" and "V and O" or "dQ")
@ end
@ local leads = problem.op == "fwd" and mask.leading_rows > 0
@ if problem.split or leads then
    int split; // $(leads and "which part of the keys; -1: all" or "of the keys that these queries see")
@ end
@ if problem.kv_dtype == "e4m3" then
    float scale; // of its scores
@ end
};
@ if problem.kv_dtype == "e4m3" then

@   include("piece/descale.cu")
@ end

@ if problem.joins_heads then
// A tile's rows are those of row_heads query heads that share keys, query by query: row j of head h is row
// j * row_heads + h % row_heads. Where says of a tile q_first and q_last in such rows, and of h the first head.
__device__ __forceinline__ int row_query(const Params &p, int row) { return quotient(row, p.row_heads, p.row_heads_inverse); }
__device__ __forceinline__ int row_head(const Params &p, const Where &at, int row) {
    return at.h + row - row_query(p, row) * p.row_heads;
}

@ end
@ if problem.packed then
// CTAs start in the order of x, then y. Heads go in groups (y) whose keys and values share the L2 cache; x counts a group's heads
// within the tiles of all sequences, the last tile of the last sequence first where later tiles are the longer ones.
__device__ __forceinline__ Where this_tile(const Params &p) {
    const int index = $(without_slice(mask.q_order > 0 and "gridDim.x - 1 - blockIdx.x" or "blockIdx.x"));
    int tile = quotient(index, p.group_heads, p.group_inverse);
    Where at;
@   if sliced then
    at.slice = blockIdx.x % slices;
@   end
@   if problem.split then
    at.split = blockIdx.z;
@   end
    at.h = blockIdx.y * p.group_heads + index - tile * p.group_heads;
    const int b = find_sequence<block_m>(p.cu_seqlens_q, p.batch, tile);
    static_cast<Sequence &>(at) = sequence(p, b);
    at.q_first = tile * block_m;
    at.q_last = min(at.q_first + block_m, at.seqlen_q) - 1;
    if (at.h >= p.num_heads_q || tile < 0 || at.q_first > at.q_last) at.b = -1; // the last group may be short
@ if problem.kv_dtype == "e4m3" then
    at.scale = at.b < 0 ? 0.0f : scale_of(p, at);
@ end
    return at;
}
@ else
@   if leads then
@     include("piece/part_of.cu")

@   end
@   local block = again and "block" or "blockIdx" -- again: a kernel's end asks once more (piece/place.cu)
// CTAs start in the order of x, then y, then z. Heads go in groups (z) whose keys and values share the L2 cache; a group's
// heads (x) go through their query tiles (y) together, the longest first, so that the last wave is made of short ones.
// The last group may be short.
__device__ __forceinline__ Where this_tile(const Params &p$(again and ", const Place &block = Place()" or "")) {
@   if problem.split then
    const int group = quotient($(block).z, p.num_splits, p.splits_inverse); // its splits follow each other
@   else
    const int group = $(block).z;
@   end
    const int head = group * $(without_slice("gridDim.x")) + $(without_slice(block .. ".x")), b = $(problem.joins_heads and "quotient(head, p.own_heads, p.own_heads_inverse)" or "quotient(head, p.num_heads_q, p.heads_inverse)");
    Where at;
@   if sliced then
    at.slice = $(block).x % slices;
@   end
@   if problem.split then
    at.split = $(block).z - group * p.num_splits;
@   end
    static_cast<Sequence &>(at) = sequence(p, $(problem.seqused_k and "min(b, p.batch - 1)" or "b"));
    if (b >= p.batch) at.b = -1;
    at.h = $(problem.joins_heads and "(head - b * p.own_heads) * p.row_heads" or "head - b * p.num_heads_q");
@   if leads then
    int tile;
    at.split = part_of(p, $(block).y, tile);
    at.q_first = tile * block_m;
@   elseif mask.q_order > 0 then
    at.q_first = (gridDim.y - 1 - $(block).y) * block_m;
@   else
    at.q_first = $(block).y * block_m;
@   end
    at.q_last = min(at.q_first + block_m, at.seqlen_q$(problem.joins_heads and " * p.row_heads" or "")) - 1;
@ if problem.kv_dtype == "e4m3" then
    at.scale = at.b < 0 ? 0.0f : scale_of(p, at);
@ end
    return at;
}
@ end
