// What the producer of Q wrote beside the queries.
__device__ __forceinline__ int claim(u32 smem, const Ring<q_stages> &q) { return warp_word(smem + q_tile + 4 * q.slot()); }
__device__ __forceinline__ bool is_redo(int word) { return word < flush; }
@ if e4m3 then
__device__ __forceinline__ void set_scale(const Params &p, Where &at) {
    const int kv_head = $(kv_head);
    const float q = descale(p.q_descale, at.b, p.q_descale_batch_stride, kv_head, p.q_descale_head_stride);
    const float k = descale(p.k_descale, at.b, p.k_descale_batch_stride, kv_head, p.k_descale_head_stride);
    const float scale = fmaxf($(#score.terms > 0 and "p.scale" or "p.scale_log2") * q * k, 0x1p-100f); // a score of -inf stays one
    at.scale = __uint_as_float(__shfl_sync(full_warp, __float_as_uint(scale), 0)); // so that it goes to a uniform register
}
@ end
__device__ __forceinline__ Where claimed(const Params &p, int word) {
@ if e4m3 then
    Where at = tile_at(p, is_redo(word) ? flush - 1 - word : word);
    set_scale(p, at);
    return at;
@ else
    return tile_at(p, is_redo(word) ? flush - 1 - word : word);
@ end
}

@ if problem.packed then
// Among packed sequences a tile is looked up once, by the producer of Q, who writes beside it what was found.
@   local num_keys = problem.seqused_k and "num_keys" or "seqlen_k"
__device__ __forceinline__ u32 tile_place(u32 smem, const Ring<q_stages> &q) { return smem + tile_places + 32 * q.slot(); }

__device__ __forceinline__ void write_place(u32 to, const Where &at) {
    st_shared_v4(to, make_uint4(at.b, at.h, at.q_first, at.seqlen_q));
    st_shared_v4(to + 16, make_uint4(at.q_offset, at.k_offset, at.seqlen_k, at.$(num_keys)));
}

// Of the tile in buffer q.
__device__ __forceinline__ Where claimed(const Params &p, u32 smem, const Ring<q_stages> &q) {
    const uint4 query = ld_shared_v4(tile_place(smem, q)), rest = ld_shared_v4(tile_place(smem, q) + 16);
    const auto same = [](u32 word) { return int(__shfl_sync(full_warp, word, 0)); };
    Where at;
    at.b = same(query.x), at.h = same(query.y), at.q_first = same(query.z), at.seqlen_q = same(query.w);
    at.q_offset = same(rest.x), at.k_offset = same(rest.y), at.seqlen_k = same(rest.z);
@   if problem.seqused_k then
    at.num_keys = same(rest.w);
@   end
    at.q_last = min(at.q_first + block_m, at.seqlen_q) - 1;
    at.diag = $(problem.top_left and "0" or "at.seqlen_k - at.seqlen_q");
@   if e4m3 then
    set_scale(p, at);
@   end
    return at;
}
@ elseif placed then
// Where a tile lies the producer of Q writes beside it.
__device__ __forceinline__ u32 tile_place(u32 smem, const Ring<q_stages> &q) { return smem + tile_places + 16 * q.slot(); }

__device__ __forceinline__ void write_place(u32 to, const Where &at) {
    st_shared_v4(to, make_uint4(at.b, at.h, at.q_first, $(mask.leading_rows > 0 and "at.split" or "0")));
}

// Of the tile in buffer q.
__device__ __forceinline__ Where claimed(const Params &p, u32 smem, const Ring<q_stages> &q) {
    const uint4 place = ld_shared_v4(tile_place(smem, q));
    const auto same = [](u32 word) { return int(__shfl_sync(full_warp, word, 0)); };
    Where at;
    static_cast<Sequence &>(at) = sequence(p, same(place.x));
    at.h = same(place.y), at.q_first = same(place.z);
    at.q_last = min(at.q_first + block_m, at.seqlen_q) - 1;
@   if mask.leading_rows > 0 then
    at.split = same(place.w);
@   end
@   if e4m3 then
    set_scale(p, at);
@   end
    return at;
}
@ else
// Of the tile in buffer q.
__device__ __forceinline__ Where claimed(const Params &p, u32 smem, const Ring<q_stages> &q) { return claimed(p, claim(smem, q)); }
@ end
