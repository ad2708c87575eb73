@ local threads = 128 * plan.consumers * plan.teams
@ local span = math.max(1, mask.block_k // plan.block_n) -- tiles of keys of which a pattern says the same
@ if span * plan.block_n ~= mask.block_k then span = 1 end
// Where tiles are of unlike length, those that are claimed last decide when all CTAs are done: of the last group of heads the longest are
// claimed first. How many tiles of keys each visits the consumers count, who wait for their first ones meanwhile. One head's count for
// all, which most tables are the same for.
constexpr int counting_threads = $(threads), most_ranks = $(math.min(threads, 256));
constexpr int most_counted = 16 * counting_threads; // asked of the mask: as much as takes no longer than the first tiles do
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
        ordered = ranks <= most_ranks && ranks * ((p.seqlen_k + $(span * plan.block_n - 1)) / $(span * plan.block_n)) <= most_counted;
    }
};

// By all consumers of the CTA together.
__device__ __forceinline__ void order_tiles(const Params &p) {
    const LastGroup last(p);
    if (!last.ordered) return;
    const u32 ranks = smem_base() + order_ranks;
    const int lane = threadIdx.x % 32, own = threadIdx.x;
    for (int rank = threadIdx.x / 32; rank < last.ranks; rank += counting_threads / 32) {
        const Where at = tile_at(p, last.first + rank * last.heads);
        const TileRange tiles = tile_range(p, at);
        int visited = 0;
        for (int n = $(span) * lane; n < tiles.end; n += $(32 * span))
            visited += n + $(span) > tiles.begin && residual_of(n, n + $(span - 1), p, at).hi != 0;
        visited = __reduce_add_sync(full_warp, visited);
        if (lane == 0) st_shared_u32(ranks + 4 * rank, visited << 8 | (255 - rank));
    }
    named_barrier_sync(15, counting_threads);
    int place = 0;
    if (own < last.ranks) {
        const u32 length = ld_shared_u32(ranks + 4 * own);
        for (int rank = 0; rank < last.ranks; ++rank) place += ld_shared_u32(ranks + 4 * rank) > length;
    }
    named_barrier_sync(15, counting_threads);
    if (own < last.ranks) st_shared_u32(ranks + 4 * place, own);
    __syncwarp();
    if (lane == 0) mbarrier_arrive(smem_base() + order_full);
}

// The tile of a claim.
__device__ __forceinline__ int in_turn(const Params &p, int claim) {
    const LastGroup last(p);
    if (claim < last.first || !last.ordered) return claim;
    mbarrier_wait(smem_base() + order_full, 0);
    const int rank = quotient(claim - last.first, last.heads, last.inverse);
    return claim + (int(warp_word(smem_base() + order_ranks + 4 * rank)) - rank) * last.heads;
}
