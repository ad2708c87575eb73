// The key tile of this CTA, and what the mask may ask of it; b = -1: none, as there are superfluous CTAs.
struct Where : Sequence {
    int h;               // query head, which changes while the CTA goes through the heads of its group
    int k_first, k_last; // keys of the tile that are used
};

@ if problem.packed then
// CTAs start in the order of x, then y, as in the forward kernel: groups of heads that share L2 (y), the tiles of all sequences,
// and within each the heads of the group (x).
__device__ __forceinline__ Where this_tile(const Params &p, int &kv_head) {
    const int index = $(mask.q_order > 0 and "gridDim.x - 1 - blockIdx.x" or "blockIdx.x");
    int tile = quotient(index, p.kv_group_heads, p.kv_group_inverse);
    Where at;
    kv_head = blockIdx.y * p.kv_group_heads + index - tile * p.kv_group_heads;
    const int b = find_sequence<block_n>(p.cu_seqlens_k, p.batch, tile);
    static_cast<Sequence &>(at) = sequence(p, b);
    at.h = kv_head * p.heads_per_kv;
    at.k_first = tile * block_n;
    at.k_last = min(at.k_first + block_n, at.seqlen_k) - 1;
    if (kv_head >= p.num_heads_kv || tile < 0 || at.k_first >= at.$(problem.seqused_k and "num_keys" or "seqlen_k")) at.b = -1; // the last group may be short
    return at;
}
@ else
// CTAs start in the order of x, then y, then z, as in the forward kernel: groups of heads that share L2 (z), their key tiles (y),
// the longest first, and the heads of the group (x). kv_head is that of the batch.
__device__ __forceinline__ Where this_tile(const Params &p, int &kv_head) {
    const int head = blockIdx.z * gridDim.x + blockIdx.x, b = quotient(head, p.num_heads_kv, p.kv_heads_inverse);
    Where at;
    static_cast<Sequence &>(at) = sequence(p, $(problem.seqused_k and "min(b, p.batch - 1)" or "b"));
    if (b >= p.batch) at.b = -1;
    kv_head = head - b * p.num_heads_kv;
    at.h = kv_head * p.heads_per_kv;
@   if mask.q_order > 0 then
    at.k_first = (gridDim.y - 1 - blockIdx.y) * block_n;
@   else
    at.k_first = blockIdx.y * block_n;
@   end
    at.k_last = min(at.k_first + block_n, at.seqlen_k) - 1;
    return at;
}
@ end
