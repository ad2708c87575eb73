// What the producer of Q wrote beside the queries.
__device__ __forceinline__ int claim(u32 smem, const Ring<q_stages> &q) { return warp_word(smem + q_tile + 4 * q.slot()); }
__device__ __forceinline__ bool is_redo(int word) { return word < flush; }
@ if trusts then
// A tile is computed once more with its own values alone, as it is else; and, if it is still out of its range, carefully.
constexpr int careful_words = -0x7fffffff - 1; // from here up
__device__ __forceinline__ bool is_careful(int word) { return word < careful_words / 2; }
__device__ __forceinline__ int redone_tile(int word) { return is_careful(word) ? word - careful_words : flush - 1 - word; }
__device__ __forceinline__ int redo_word(int word) { return word >= 0 ? flush - 1 - word : careful_words + (flush - 1 - word); }
@ else
__device__ __forceinline__ bool is_careful(int word) { return is_redo(word); }
__device__ __forceinline__ int redone_tile(int word) { return flush - 1 - word; }
__device__ __forceinline__ int redo_word(int word) { return flush - 1 - word; }
@ end
@ if sparse then
// What is said of tile `word`, if it is one: where a query may see one key alone, to compute it carefully.
__device__ __forceinline__ int said(const Params &p, const Where &at, int word) {
    if (word < 0 || !sees_one(p, at.b, at.h, at.q_first, at.q_last)) return word;
    return $(trusts and "careful_words + word" or "redo_word(word)");
}
@ end
__device__ __forceinline__ Where claimed(const Params &p, int word) { return tile_at(p, is_redo(word) ? redone_tile(word) : word); }

// Where a tile lies is much to compute, and consumers stand while they begin a row or end it: the producer of Q writes it beside the
// queries. Words 0: b, h, q_first, and which part, how many queries there are, or where tiles of keys begin; 4: of packed sequences,
// where they lie, and how many keys there are; then for each warpgroup which tiles of keys its rows visit$(descaled and "; last what scores are multiplied by" or "").
__device__ __forceinline__ u32 tile_place(u32 smem, const Ring<q_stages> &q) { return smem + tile_places + place_bytes * q.slot(); }
__device__ __forceinline__ int same(u32 word) { return int(__shfl_sync(full_warp, word, 0)); }
@ if bounds then
constexpr u32 tile_ranges = $((problem.packed or plan.parts) and 32 or 16);
@ end
@ if descaled then
constexpr u32 tile_scale = place_bytes - 16;
@ end

@ local num_keys = problem.seqused_k and "num_keys" or "seqlen_k"
@ local fourth = problem.packed and "at.seqlen_q" or plan.parts and "at.claim" or mask.leading_rows > 0 and "at.split" or mask.shifts and "at.k_first" or "0"
__device__ __forceinline__ void write_place(u32 to, const Where &at) {
    st_shared_v4(to, make_uint4(at.b, at.h, at.q_first, $(fourth)));
@ if problem.packed then
    st_shared_v4(to + 16, make_uint4(at.q_offset, at.k_offset, at.seqlen_k, at.$(num_keys)));
@ elseif plan.parts then
    st_shared_v4(to + 16, make_uint4(at.first_tile, at.seqlen_k, 0, 0));
@ end
}

// Of the tile in buffer q.
__device__ __forceinline__ Where claimed(const Params &p, u32 smem, const Ring<q_stages> &q) {
    const uint4 place = ld_shared_v4(tile_place(smem, q));
    Where at;
@ if problem.packed then
    const uint4 rest = ld_shared_v4(tile_place(smem, q) + 16);
    at.b = same(place.x), at.seqlen_q = same(place.w);
    at.q_offset = same(rest.x), at.k_offset = same(rest.y), at.seqlen_k = same(rest.z);
@   if problem.seqused_k then
    at.num_keys = same(rest.w);
@   end
    at.diag = $(problem.top_left and "0" or "at.seqlen_k - at.seqlen_q");
@ else
    static_cast<Sequence &>(at) = sequence(p, same(place.x));
@ end
    at.h = same(place.y), at.q_first = same(place.z);
@ if problem.gqa then
    at.kv_head = at.h / p.heads_per_kv;
@ end
    at.q_last = min(at.q_first + $(shares and "2 * " or "")block_m, at.seqlen_q) - 1;
@ if mask.leading_rows > 0 then
    at.split = same(place.w);
@ end
@ if plan.parts then
    const uint4 keys = ld_shared_v4(tile_place(smem, q) + 16);
    at.claim = same(place.w), at.first_tile = same(keys.x), at.seqlen_k = same(keys.y);
    at.diag -= at.first_tile * block_n;
@ end
@ if mask.shifts then
    at.k_first = same(place.w);
@ end
@ if descaled then
    at.scale = __uint_as_float(same(ld_shared_u32(tile_place(smem, q) + tile_scale)));
@ end
    return at;
}

@ if shares then
// Of a cluster's tile the rows of this CTA.
__device__ __forceinline__ Where own_rows(Where at) {
    at.q_first += cluster_rank() * block_m;
    at.q_last = min(at.q_first + block_m, at.seqlen_q) - 1;
    return at;
}

@ end
@ local of = plan.q_stages == 1 and "same" or "int" -- lanes that store for themselves have no registers for it
// How the rows of the tile in buffer q leave.
struct Leaving {
    int b, h, first, rows; // the first row of O$(problem.packed and ", of all sequences'" or ""), and how many there are
@ if mask.leading_rows > 0 then
    int split;
@ end
@ if plan.parts then
    int claim;
@ end

    __device__ __forceinline__ Leaving(const Params &p, u32 smem, const Ring<q_stages> &q) {
        const uint4 place = ld_shared_v4(tile_place(smem, q));
        b = $(of)(place.x), h = $(of)(place.y), first = $(of)(place.z)$(shares and " + cluster_rank() * block_m" or "");
@ if problem.packed then
        rows = same(place.w) - same(place.z); // for all lanes, as branches depend on it
        first += $(of)(ld_shared_u32(tile_place(smem, q) + 16));
@ else
        rows = p.seqlen_q - first;
@ end
@ if mask.leading_rows > 0 then
        split = same(place.w);
@ end
@ if plan.parts then
        claim = same(place.w);
@ end
    }
};
@ if bounds then
@ local scarce = e4m3 and layout.dv_pad > 224 and plan.consumers == 2 -- of the producer's 24 registers none keeps what is worked out here

// Which tiles of keys the rows of a lane's warpgroup visit.
struct Ranges {
    TileWalk walk;
    int before = 0, behind = 0; // how many of the CTA's tiles come before them, and how many behind

    __device__ __forceinline__ Ranges() {}
    // `careful`: no tile is taken for full.
    __device__ __forceinline__ Ranges(const Params &p, const Where &at, bool careful) {
        const TileRange all = tile_range(p, at);
        Where own = at;
        own.q_first = $(scarce and "opaque(at.q_first)" or "at.q_first") + $(shares and "cluster_rank() * block_m + " or "")min(int(threadIdx.x % 32), consumers - 1) * 64;
        own.q_last = min(own.q_first + 63, at.q_last);
        walk = TileWalk(p, own, careful);
@   if mask.runs then
        // What decreases although it is said to be sorted may say that a warpgroup sees tiles which nobody sends.
        walk.tiles.begin = max(walk.tiles.begin, all.begin), walk.tiles.end = min(walk.tiles.end, all.end);
        walk.n = walk.tiles.begin < walk.tiles.end ? walk.tiles.end - 1 : -1;
@   end
        if (own.q_first > own.q_last) walk.n = -1;
        if (walk.n < 0) walk.tiles = {all.begin, all.begin, all.begin, all.begin};
        before = all.end - walk.tiles.end, behind = walk.tiles.begin - all.begin;
    }

    __device__ __forceinline__ void write(u32 place) const {
        const int lane = $(scarce and "lane_anew()" or "threadIdx.x % 32");
        if (lane >= consumers) return;
        st_shared_v4(place + tile_ranges + 32 * lane, make_uint4(walk.n, walk.tiles.begin, walk.tiles.full_begin, walk.tiles.full_end));
        st_shared_v4(place + tile_ranges + 32 * lane + 16, make_uint4(before, behind, 0, 0));
    }
};
@   if mask.runs then

// The tiles that the CTA visits, of what is written of its first warpgroup: by shuffles, as branches depend on it.
__device__ __forceinline__ TileWalk written_walk(u32 place) {
    const uint4 own = ld_shared_v4(place + tile_ranges), others = ld_shared_v4(place + tile_ranges + 16);
    TileWalk walk;
    walk.tiles.begin = same(own.y - others.y);
    walk.tiles.end = same((int(own.x) < 0 ? own.y : own.x + 1) + others.x);
    walk.n = walk.tiles.end > walk.tiles.begin ? walk.tiles.end - 1 : -1;
    return walk;
}
@   end
@ end
