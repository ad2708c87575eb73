@ local threads = 128 * plan.consumers * plan.teams
@ local span = math.max(1, mask.block_k // plan.block_n) -- tiles of keys of which a pattern says the same
@ if span * plan.block_n ~= mask.block_k then span = 1 end
@ local keys = span * plan.block_n
@ local worth = { "ranks <= most_ranks" }
@ if not mask.runs then worth[2] = ("i64(ranks) * ((p.seqlen_k + %d) / %d) <= most_counted"):format(keys - 1, keys) end
@ for slot, array in ipairs(arrays) do -- not where heads have tables of their own
@   local rank = 0
@   for index in array.declared:gmatch("%[(.-)%]") do
@     local count = index == "b" and "p.batch" or index == "h" and "p.num_heads_q"
@     if count and (mask.runs and (array.name == mask.runs.q or array.name == mask.runs.k) or
@       mask.residual and mask.residual:find("%f[%w_]" .. array.name .. "_iv_at")) then
@       worth[#worth + 1] = ("(%s == 1 || p.array[%d].stride[%d] == 0)"):format(count, slot - 1, rank)
@     end
@     rank = rank + 1
@   end
@ end
// Where tiles are of unlike length, those that are claimed last decide when all CTAs are done: of the last group of heads the longest are
// claimed first. How many tiles of keys each visits the consumers count, who wait for their first ones meanwhile. One head counts for all,
// where they have one table.
constexpr int counting_threads = $(threads), most_ranks = $(math.min(threads, 256));
@ if not mask.runs then
constexpr int most_counted = 16 * counting_threads; // asked of the mask: as much as takes no longer than the first tiles do
@ end
constexpr u32 order_full = $(layout.order), order_ranks = order_full + 8; // whether the ranks are there, of a head's tiles, the longest first

struct LastGroup {
    int first, heads, ranks; // its first tile; tiles of a head
    u32 inverse;             // of heads
    bool ordered;

    __device__ __forceinline__ explicit LastGroup(const Params &p) {
        const int group = quotient(p.num_tiles - 1, p.group_tiles, p.group_tiles_inverse);
        const int heads_left = p.batch * p.num_heads_q - group * p.group_heads;
        const bool short_group = heads_left < p.group_heads;
        first = group * p.group_tiles;
        heads = short_group ? heads_left : p.group_heads;
        inverse = short_group ? p.last_group_inverse : p.group_inverse;
        ranks = quotient(p.group_tiles, p.group_heads, p.group_inverse);
        ordered = $(table.concat(worth, " && "));
    }
};

// The sum over the lanes of a row.
__device__ __forceinline__ int sum_of_lanes(int x, int lanes) {
    for (int step = lanes / 2; step > 0; step /= 2) x += __shfl_xor_sync(full_warp, x, step);
    return x;
}

// By all consumers of the CTA together, as many lanes of a warp to a row as there are.
__device__ __forceinline__ void order_tiles(const Params &p) {
    const LastGroup last(p);
    if (!last.ordered) return;
@ if mask.runs then
    wait_for_previous(); // who wrote the runs
@ end
    int lanes = 32;
    while (lanes * last.ranks > counting_threads) lanes /= 2;
    const int rank = threadIdx.x / lanes, lane = threadIdx.x % lanes;
    const bool counts = rank < last.ranks;
    const u32 ranks = smem_base() + order_ranks;
    int visited = 0, place = 0;
    if (counts) {
        const Where at = tile_at(p, last.first + rank * last.heads);
        const TileRange tiles = tile_range(p, at);
@ if mask.runs then
        if (lane == 0) visited = tiles.end - tiles.begin;
@ else
        for (int n = $(span) * lane; n < tiles.end; n += $(span) * lanes)
            visited += n + $(span) > tiles.begin && any_seen(n, n + $(span - 1), p, at);
@ end
    }
    visited = sum_of_lanes(visited, lanes);
    const u32 length = visited << 8 | (255 - rank); // no two are the same
    if (counts && lane == 0) st_shared_u32(ranks + 4 * rank, length);
    named_barrier_sync(15, counting_threads);
    for (int other = lane; counts && other < last.ranks; other += lanes) place += ld_shared_u32(ranks + 4 * other) > length;
    place = sum_of_lanes(place, lanes);
    named_barrier_sync(15, counting_threads);
    if (counts && lane == 0) st_shared_u32(ranks + 4 * place, rank);
    __syncwarp();
    if (threadIdx.x % 32 == 0) mbarrier_arrive(smem_base() + order_full);
}

// The tile of a claim.
__device__ __forceinline__ int in_turn(const Params &p, int claim) {
    const LastGroup last(p);
    if (claim < last.first || !last.ordered) return claim;
    mbarrier_wait(smem_base() + order_full, 0);
    const int rank = quotient(claim - last.first, last.heads, last.inverse);
    return claim + (int(warp_word(smem_base() + order_ranks + 4 * rank)) - rank) * last.heads;
}
