// The first $(mask.leading_rows) keys of a head are seen by far more queries than most. Where their walk is long, these come in parts (splits): each is
// claimed by itself and leaves dK / scale and dV in float32 behind the counter, and fk_backward_combine adds them up in their order.
// The runtime counts them as well (runtime/persistent.c).
constexpr int split_keys = $(mask.leading_rows), split_columns = head_dim + head_dim_v;

__device__ __forceinline__ int num_splits(const Params &p) {
    constexpr i64 long_walk = 8192, part = 4096, most = 128;
    const i64 queries = i64(p.seqlen_q) * p.heads_per_kv;
    return queries <= long_walk ? 1 : int(min((queries + part - 1) / part, most));
}

// Where a split's gradients of key k are: of all batch entries' kv heads, then of the next split.
__device__ __forceinline__ float *split_row(const Params &p, int split, int b, int kv_head, int k) {
    const i64 head = (i64(split) * p.batch + b) * p.num_heads_kv + kv_head;
    return reinterpret_cast<float *>(p.claims + 64) + (head * split_keys + k) * split_columns;
}
