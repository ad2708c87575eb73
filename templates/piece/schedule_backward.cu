// The key tile of this CTA, and what the mask may ask of it.
struct Where {
    int b, h; // batch and query head, which changes while the CTA goes through the heads of its group
    int seqlen_q, seqlen_k, diag;
    int k_first, k_last; // keys of the tile that exist
};

// a / b for a < 2^31, where inverse = min(floor(2^32 / b), 2^32 - 1).
__device__ __forceinline__ int quotient(int a, int b, u32 inverse) {
    const int q = int(u64(u32(a)) * inverse >> 32); // or one less
    return a - q * b >= b ? q + 1 : q;
}

// CTAs start in the order of x, then y, then z, as in the forward kernel: groups of heads that share L2 (z), their key tiles (y),
// the longest first, and the heads of the group (x). kv_head is that of the batch.
__device__ __forceinline__ Where this_tile(const Params &p, int &kv_head) {
    const int head = blockIdx.z * gridDim.x + blockIdx.x;
    Where at;
    at.b = quotient(head, p.num_heads_kv, p.kv_heads_inverse);
    kv_head = head - at.b * p.num_heads_kv;
    if (at.b >= p.batch) at.b = -1;
    at.h = kv_head * p.heads_per_kv;
    at.seqlen_q = p.seqlen_q;
    at.seqlen_k = p.seqlen_k;
    at.diag = p.diag;
@ if mask.q_order > 0 then
    at.k_first = (gridDim.y - 1 - blockIdx.y) * block_n;
@ else
    at.k_first = blockIdx.y * block_n;
@ end
    at.k_last = min(at.k_first + block_n, p.seqlen_k) - 1;
    return at;
}
