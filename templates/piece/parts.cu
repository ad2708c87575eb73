// Tiles are all alike, so that the last ones, fewer than there are CTAs, would be waited for. They come in parts: each has some of the
// tiles of keys, as if there were no others, and leaves O and lse in float32; fk_forward_combine makes rows of them. Claims from
// p.first_part on are parts, p.num_splits of a tile; from p.late_part on p.late_splits, of tiles for which the others left no room. How
// many, the runtime chooses (runtime/parts.c).
__device__ __forceinline__ Where tile_at(const Params &p, int claim) {
    const bool late = claim >= p.late_part;
    const int nth = max(claim - (late ? p.late_part : p.first_part), 0), splits = late ? p.late_splits : p.num_splits;
    const u32 inverse = late ? p.late_inverse : p.splits_inverse;
    const int which = quotient(nth, splits, inverse);
    Where at = whole_tile_at(p, claim < p.first_part ? claim : (late ? p.late_tile : p.first_part) + which);
    const int tiles = int((u32(at.seqlen_k) + (block_n - 1)) / block_n);
    const int each = claim < p.first_part ? tiles : quotient(tiles + splits - 1, splits, inverse);
    at.claim = claim;
    at.first_tile = (nth - which * splits) * each;
    at.seqlen_k = max(min(at.seqlen_k - at.first_tile * block_n, each * block_n), 0);
    at.diag -= at.first_tile * block_n; // masks count keys as seqlen_k does
    return at;
}
