@ local claimed = plan.family == "wgmma"
@ if claimed then
// $(mask.all_lead and "Where CTAs are many and heads are few, tiles of keys" or "The first " .. mask.leading_rows .. " keys of a head are seen by far more queries than most. Where CTAs are many and heads are few, these") come in parts
// (splits): each is claimed by itself and leaves dK / scale and dV in float32 behind the counter, and fk_backward_combine adds them up in
// their order. How many parts, the runtime chooses (runtime/persistent.c).
@ else
// What parts leave: dK / scale and dV, at p.claims, where nothing is counted.
@ end
constexpr int split_columns = head_dim + head_dim_v;
@ local all = problem.packed and "p.cu_seqlens_k[p.batch]" or "p.seqlen_k"
__device__ __forceinline__ int split_keys(const Params &p) { return $(mask.all_lead and all or "min(" .. mask.leading_rows .. ", p.seqlen_k)"); } // of a head

@ if claimed then
// The tiles of these keys, of all heads.
__device__ __forceinline__ int leading_tiles(const Params &p) {
    return min($(mask.leading), p.group_tiles / p.kv_group_heads) * $(problem.packed and "" or "p.batch * ")p.num_heads_kv;
}

@ end
@ if problem.packed then
// Where a split's gradients of key k are: of all kv heads, whose keys are those of all sequences, then of the next split.
__device__ __forceinline__ float *split_row(const Params &p, int split, const Sequence &at, int kv_head, int k) {
    const i64 head = i64(split) * p.num_heads_kv + kv_head;
    k += at.k_offset;
@ else
// Where a split's gradients of key k are: of all batch entries' kv heads, then of the next split.
__device__ __forceinline__ float *split_row(const Params &p, int split, const Sequence &at, int kv_head, int k) {
    const i64 head = (i64(split) * p.batch + at.b) * p.num_heads_kv + kv_head;
@ end
    return reinterpret_cast<float *>(p.claims$(claimed and " + 64" or "")) + (head * split_keys(p) + k) * split_columns;
}
