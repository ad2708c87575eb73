@ local rotates = plan.cluster > 1 and not plan.adders and not mask.residual -- walks begin at different tiles of queries
@ if rotates then
// The tiles that the keys of `at` visit, from the last to the first, but from another one on for each tile of keys: clusters that go
// through the keys of a head side by side then add to different sums.
struct TurnedWalk {
    TileRange tiles;
    int left, n; // tiles to come with the one at hand, n; -1: there is none

    __device__ __forceinline__ TurnedWalk(const Params &p, const Where &at) : tiles(TileWalk(p, at).tiles), left(max(tiles.end - tiles.begin, 0)) {
        n = left > 0 ? tiles.end - 1 - at.k_first / block_m % left : -1;
    }
    __device__ __forceinline__ bool whole() const { return n >= tiles.full_begin && n < tiles.full_end; }
    __device__ __forceinline__ void next(const Params &, const Where &) {
        --left;
        n = left <= 0 ? -1 : n > tiles.begin ? n - 1 : tiles.end - 1;
    }
};

@ end
@ local of_head = rotates and "TurnedWalk" or "TileWalk"
@ if problem.gqa then
@   local parts = mask.all_lead -- tiles of keys may come in parts, which have some of the heads
// The tiles of all heads of a group$(parts and ", or of a part's," or ","), one head after the other: at.h is that of the tile at hand.
struct RowWalk : $(of_head) {
    int heads_left;

    __device__ __forceinline__ RowWalk(const Params &p, Where &at)
        : $(of_head)(p, $(parts and "own_heads(p, at)" or "at")), heads_left($(parts and "at.split < 0 ? p.heads_per_kv : p.part_heads" or "p.heads_per_kv")) {
        skip_heads(p, at);
    }
@   if parts then
    static __device__ __forceinline__ const Where &own_heads(const Params &p, Where &at) {
        if (at.split >= 0) at.h += heads_before(p, at.split);
        return at;
    }
@   end
    __device__ __forceinline__ void next(const Params &p, Where &at) {
        $(of_head)::next(p, at);
        skip_heads(p, at);
    }
    __device__ __forceinline__ void skip_heads(const Params &p, Where &at) {
        while (n < 0 && --heads_left > 0) {
            ++at.h;
            static_cast<$(of_head) &>(*this) = $(of_head)(p, at);
        }
    }
};
@ else
using RowWalk = $(of_head);
@ end
