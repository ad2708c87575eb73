// The query tile of this CTA, and what the mask may ask of it.
struct Where {
    int b, h; // batch and query head
    int seqlen_q, seqlen_k, diag;
    int q_first, q_last; // query rows of the tile that exist
};

// CTAs start in the order of x, then y, then z. Heads go in groups (z) whose keys and values share the L2 cache; a group's
// heads (x) go through their query tiles (y) together, the longest first, so that the last wave is made of short ones.
// The last group may be short: its superfluous CTAs have b = -1.
__device__ __forceinline__ Where this_tile(const Params &p) {
    const int head = blockIdx.z * gridDim.x + blockIdx.x;
    Where at;
    at.b = int(u64(u32(head)) * p.heads_inverse >> 32); // head / num_heads_q, or one less
    at.h = head - at.b * p.num_heads_q;
    if (at.h >= p.num_heads_q) {
        at.b += 1;
        at.h -= p.num_heads_q;
    }
    if (at.b >= p.batch) at.b = -1;
    at.seqlen_q = p.seqlen_q;
    at.seqlen_k = p.seqlen_k;
    at.diag = p.diag;
@ if mask.q_order > 0 then
    at.q_first = (gridDim.y - 1 - blockIdx.y) * block_m;
@ else
    at.q_first = blockIdx.y * block_m;
@ end
    at.q_last = min(at.q_first + block_m, p.seqlen_q) - 1;
    return at;
}
