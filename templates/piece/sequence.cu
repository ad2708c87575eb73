// Where a sequence (an entry of the batch) lies, and how long it is.
struct Sequence {
    int b;
    int seqlen_q, seqlen_k, diag;
@ if problem.packed then
    int q_offset, k_offset; // rows before it, of all sequences
@ end
@ if problem.seqused_k then
    int num_keys; // rows that k and v have; the first seqlen_k of them are used
@ end
};

__device__ __forceinline__ Sequence sequence(const Params &p, int b) {
    Sequence s;
    s.b = b;
@ if problem.packed then
    s.q_offset = p.cu_seqlens_q[b];
    s.k_offset = p.cu_seqlens_k[b];
    s.seqlen_q = p.cu_seqlens_q[b + 1] - s.q_offset;
    s.seqlen_k = p.cu_seqlens_k[b + 1] - s.k_offset;
@ else
    s.seqlen_q = p.seqlen_q;
    s.seqlen_k = p.seqlen_k;
@ end
@ if problem.seqused_k then
    s.num_keys = s.seqlen_k;
    s.seqlen_k = max(min(p.seqused_k[b], s.num_keys), 0);
@ end
@ if not (problem.packed or problem.seqused_k) then
    s.diag = p.diag;
@ elseif problem.top_left then
    s.diag = 0;
@ else
    s.diag = s.seqlen_k - s.seqlen_q;
@ end
    return s;
}

// Elements before a sequence's first row of queries, of keys.
__device__ __forceinline__ i64 q_start(const Sequence &s, i64 batch_stride, i64 row_stride) {
    return $(problem.packed and "s.q_offset * row_stride" or "s.b * batch_stride");
}
__device__ __forceinline__ i64 k_start(const Sequence &s, i64 batch_stride, i64 row_stride) {
    return $(problem.packed and "s.k_offset * row_stride" or "s.b * batch_stride");
}

// The place of a sequence's first row in lse.
__device__ __forceinline__ i64 lse_start(const Params &p, const Sequence &s, int h) {
@ if problem.packed then
    return i64(h) * p.total_q + s.q_offset;
@ else
    return (i64(s.b) * p.num_heads_q + h) * p.seqlen_q;
@ end
}
@ if problem.op == "bwd" then

// The same in the workspace, where rows are padded to whole tiles.
__device__ __forceinline__ i64 padded_start(const Params &p, const Sequence &s, int h) {
@   if problem.packed then
    return i64(h) * p.q_padded + (s.q_offset / block_m + s.b) * block_m;
@   else
    return (i64(s.b) * p.num_heads_q + h) * p.q_padded;
@   end
}
@ end

// a / b for a < 2^31, where inverse = min(floor(2^32 / b), 2^32 - 1).
__device__ __forceinline__ int quotient(int a, int b, u32 inverse) {
    const int q = int(u64(u32(a)) * inverse >> 32); // or one less
    return a - q * b >= b ? q + 1 : q;
}
@ if problem.packed then

// Tiles of all sequences count through: those of sequence b start at tile cu_seqlens[b] / BLOCK + b. That leaves room for a broken
// tile behind each, and makes total / BLOCK + batch tiles, whatever the lengths are: few of them turn out to be empty. Finds a
// tile's sequence, 32 guesses at a time, and which of its tiles it is: below 0 or past the last one if the tile is empty.
template <int BLOCK> __device__ __forceinline__ int find_sequence(const int *cu_seqlens, int batch, int &tile) {
    const int lane = threadIdx.x % 32;
    int b = 0, step = 1;
    while (step * 32 < batch) step *= 32;
    for (; step > 0; step /= 32) {
        const int guess = b + lane * step;
        const bool starts_before = lane == 0 || (guess < batch && cu_seqlens[guess] / BLOCK + guess <= tile);
        b += (__popc(__ballot_sync(full_warp, starts_before)) - 1) * step;
    }
    tile -= cu_seqlens[b] / BLOCK + b;
    return b;
}
@ end
