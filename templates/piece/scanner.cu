// Masks that are no bounds: which tiles of keys are visited is looked for by one warp, the scanner, and written beside each tile.

// What the producer of K and the scanner tell each other, and beside each tile of K which it is: a Visit.
constexpr u32 scan_word = scan_told + 8, scan_end = scan_word + 4, scan_turn = scan_end + 4, scan_first = scan_turn + 4;
constexpr u32 scan_active = scan_first + 4, scan_full = scan_active + 4 * 32, k_visit = scan_full + 4 * 32;

// A tile of keys to visit, in a word.
struct Visit {
    int word = 4 * -1 + 2;
    int n = -1; // the tile; -1: the row of queries visits none

    __device__ __forceinline__ Visit() {}
    __device__ __forceinline__ explicit Visit(int word_) : word(word_), n(word_ >> 2) {}
    __device__ __forceinline__ Visit(int n_, bool last, bool whole) : word(4 * n_ + 2 * last + whole), n(n_) {}
    __device__ __forceinline__ bool last() const { return word & 2; } // of its row
    __device__ __forceinline__ bool whole() const { return word & 1; } // all its pairs are seen, and may be taken so
};

// What the producer of K wrote beside the keys.
__device__ __forceinline__ Visit visit(u32 smem, const Ring<k_stages> &k) {
    return Visit(warp_word(smem + k_visit + 4 * k.index()));
}

// The scanner: a warp that looks for the tiles of keys that a mask which is no bound leaves over, while others work on the tile of
// queries before. The producer of K asks: of which tile of queries, and below which tile of keys. The answer, what scan_tiles
// found, holds the next tiles to visit of up to 1024; scan_first has 1 added where there may be more below.
struct Scanner {
    const Params &p;
    const u32 smem;

    __device__ __forceinline__ Scanner(const Params &p_, u32 smem_) : p(p_), smem(smem_) {}

    __device__ __forceinline__ void run() {
        for (u32 parity = 0;;) {
            mbarrier_wait(smem + scan_asked, parity);
            const int word = warp_word(smem + scan_word);
            if (word == no_more) return;
            const Where at = claimed(p, word);
            TileRange tiles = tile_range(p, at);
            if (is_redo(word)) tiles.full_begin = tiles.full_end = tiles.begin; // no tile is taken for full
            TileScan scan;
            int end = min(tiles.end, int(ld_shared_u32(smem + scan_end)));
            while (end > tiles.begin) {
                end = (end - 1) / 1024 * 1024;
                scan_tiles(scan, end, tiles, p, at);
                if (__any_sync(full_warp, scan.active)) break;
            }
            const int lane = opaque(int(threadIdx.x)) % 32; // of a warp with the fewest registers
            parity = ld_shared_u32(smem + scan_turn) ^ 1;
            st_shared_u32(smem + scan_active + 4 * lane, scan.active);
            st_shared_u32(smem + scan_full + 4 * lane, scan.full);
            if (lane == 0) st_shared_u32(smem + scan_first, scan.first + (end > tiles.begin));
            __syncwarp();
            if (lane == 0) mbarrier_arrive(smem + scan_told);
        }
    }
};
