// Tiles are all alike, so that the last ones, fewer than there are CTAs, would be waited for. They come in parts: each has some of the
// tiles of keys, as if there were no others, and leaves O and lse in float32; fk_forward_combine makes rows of them. Claims from
// p.first_part on are parts, p.num_splits of a tile; from p.late_part on p.late_splits, of tiles for which the others left no room. How
// many, the runtime chooses (runtime/tail.c).
struct Part {
    int claim, tile, splits = 1, split = 0;
    u32 inverse;

    __device__ __forceinline__ Part(const Params &p, int claim_) : claim(claim_), tile(claim_) {
        if (claim < p.first_part) return;
        const bool late = claim >= p.late_part;
        const int nth = claim - (late ? p.late_part : p.first_part);
        splits = late ? p.late_splits : p.num_splits, inverse = late ? p.late_inverse : p.splits_inverse;
        const int which = quotient(nth, splits, inverse);
        split = nth - which * splits;
        tile = (late ? p.late_tile : p.first_part) + which;
    }

    // As many tiles of keys as the other parts have; the last part perhaps fewer.
    __device__ __forceinline__ void keep_own_keys(Where &at) const {
        at.claim = claim;
        at.first_tile = 0;
        if (splits == 1) return;
        const int tiles = int((u32(at.seqlen_k) + (block_n - 1)) / block_n), each = quotient(tiles + splits - 1, splits, inverse);
        at.first_tile = split * each;
        at.seqlen_k = min(at.seqlen_k - at.first_tile * block_n, each * block_n);
    }
};
