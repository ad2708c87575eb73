// Masks that are no bounds: which tiles of keys are visited is looked for by one warp, $(scanner and "the scanner" or "that of the producer"), and written beside each tile.

@ if scanner then
// What the producer of K and the scanner tell each other, and beside each tile of K which it is: a Visit.
constexpr u32 scan_word = scan_told + 8, scan_end = scan_word + 4, scan_turn = scan_end + 4, scan_first = scan_turn + 4;
constexpr u32 scan_active = scan_first + 4, scan_full = scan_active + 4 * 32, k_visit = scan_full + 4 * 32;
@ else
constexpr u32 k_visit = first_claim + 8; // beside each tile of K which it is: a Visit
@ end
@ if #mask.own > 0 then
constexpr u32 own_terms = $(layout.own_terms); // of the tile of queries that is looked at
@ end

// A tile of keys to visit, in a word: whether it is the last of its row; for each warpgroup, whether all pairs of its rows are seen,
// and may be taken so, and whether none is; which tile.
struct Visit {
    static constexpr int groups = (1 << consumers) - 1, tile_bit = 1 + 2 * consumers;
    int word = -1 << tile_bit | 1;
    int n = -1; // the tile; -1: the row of queries visits none

    __device__ __forceinline__ Visit() {}
    __device__ __forceinline__ explicit Visit(int word_) : word(word_), n(word_ >> tile_bit) {}
    // `seen`: a bit for each warpgroup that sees all, and above them one for each that sees nothing.
    __device__ __forceinline__ Visit(int n_, bool last, int seen) : word(n_ << tile_bit | seen << 1 | last), n(n_) {}
    __device__ __forceinline__ bool last() const { return word & 1; }
    __device__ __forceinline__ bool whole(int group) const { return word >> (1 + group) & 1; }
    __device__ __forceinline__ bool none(int group) const { return word >> (1 + consumers + group) & 1; }
};

@ if not mask.long_walk then
// What each warpgroup sees of a tile: for Visit. A tile of queries has more of its pairs than its warpgroups, so that some of these may
// do without the element test, and some without weights. `careful`: no tile is taken for whole.
__device__ __forceinline__ int seen_by_groups(const Params &p, const Where &at, int n, bool careful) {
    Where own = at; // lane g asks for warpgroup g
    own.q_first += 64 * min(int(threadIdx.x % 32), consumers - 1);
    own.q_last = min(own.q_first + 63, at.q_last);
@ if #mask.upper + #mask.lower > 0 then
    const TileRange tiles = tile_range(p, own);
    const bool inside = n >= tiles.full_begin && n < tiles.full_end;
@ else
    const bool inside = n * block_n + block_n <= at.seqlen_k;
@ end
@ if mask.words then
    const u32 seen = seen_of(n, p, own); // of no rows: all, and none
    const bool some = seen & seen_some, all = seen & seen_all;
@ else
    const Interval keep = residual_of(n, n, p, own);
    const bool some = keep.hi != 0, all = keep.lo == 1;
@ end
    const int whole = __ballot_sync(full_warp, inside && all && own.q_first <= own.q_last && !careful) & Visit::groups;
    const int none = __ballot_sync(full_warp, !some) & Visit::groups;
    return none << consumers | whole;
}
@ end

// What the producer of K wrote beside the keys.
__device__ __forceinline__ Visit visit(u32 smem, const Ring<k_stages> &k) {
    return Visit(warp_word(smem + k_visit + 4 * k.index()));
}

@ if mask.leading_rows > 0 then
@   include("piece/split_range.cu")

@ end
@ if scanner then
// The scanner: a warp that looks for the tiles of keys that a mask which is no bound leaves over, while others work on the tile of
// queries before. The producer of K asks: of which tile of queries, and below which tile of keys. The answer, what scan_tiles
// found, holds the next tiles to visit of up to 1024; scan_first has 1 added where there may be more below.
struct Scanner {
    const Params &p;
    const u32 smem;

    __device__ __forceinline__ Scanner(const Params &p_, u32 smem_) : p(p_), smem(smem_) {}

    __device__ __forceinline__ void run() {
@ if mask.words then
        wait_for_previous(); // who looked up what tiles hold
@ end
        for (u32 parity = 0;;) {
            mbarrier_wait(smem + scan_asked, parity);
            const int word = warp_word(smem + scan_word);
            if (word == no_more) return;
            const Where at = claimed(p, word);
            TileRange tiles = tile_range(p, at);
@ if mask.leading_rows > 0 then
            if (at.split >= 0) tiles = split_range(tiles, p, at);
@ end
            if (is_careful(word)) tiles.full_begin = tiles.full_end = tiles.begin; // no tile is taken for full
            TileScan scan;
@ if #mask.own > 0 then
            scan.own = smem + own_terms;
            keep_own(scan.own, p, at);
@ end
            int end = min(tiles.end, int(ld_shared_u32(smem + scan_end)));
            while (end > tiles.begin) {
                end = (end - 1) / 1024 * 1024;
                scan_tiles(scan, end, tiles, p, at);
                if (__any_sync(full_warp, scan.active)) break;
            }
            const int lane = lane_anew(); // of a warp with the fewest registers
            parity = ld_shared_u32(smem + scan_turn) ^ 1;
            st_shared_u32(smem + scan_active + 4 * lane, scan.active);
            st_shared_u32(smem + scan_full + 4 * lane, scan.full);
            if (lane == 0) st_shared_u32(smem + scan_first, scan.first + (end > tiles.begin));
            __syncwarp();
            if (lane == 0) mbarrier_arrive(smem + scan_told);
        }
    }
};
@ end
