// ---- before: keys and values of 8 bits as $(problem.dtype), which copies by TMA bring to tensor cores ----
//
// values: [kv heads of all batch entries][keys][head_dim] of K, then the same of V; nothing is written behind a sequence's last key, nor
// where bounds of the mask say that no query looks. What elements count for stays beside scores and O, so that nothing is lost.
constexpr int widen_keys = 64, widen_threads = 128;

// Where key `key` of a sequence is.
__device__ __forceinline__ i64 key_at(const Params &p, const Sequence &s, int key, i64 batch_stride, i64 row_stride) {
@ if plan.widens_pages then
    const int nth = quotient(key, p.page_size, p.page_inverse);
    return p.page_table[i64(s.b) * p.page_table_stride + nth] * batch_stride + (key - nth * p.page_size) * row_stride;
@ else
    return k_start(s, batch_stride, row_stride) + key * row_stride;
@ end
}

// DIM elements of each of num_keys keys from `first` on.
template <int DIM>
__device__ __forceinline__ void widen_rows(Element *to, const KeyElement *from, const Params &p, const Sequence &s, int first, int num_keys, i64 batch_stride,
                                           i64 row_stride) {
    constexpr int chunks = DIM / 8; // which become 16 bytes
#pragma unroll 4
    for (int i = threadIdx.x; i < num_keys * chunks; i += widen_threads) {
        const int row = i / chunks, column = i % chunks * 8;
        const uint2 v = ld_global_pair(from + key_at(p, s, first + row, batch_stride, row_stride) + column);
        const uint2 low = unpack_e4m3_$(plan.operands)(v.x), high = unpack_e4m3_$(plan.operands)(v.y);
        st_global_v4(to + i64(first + row) * DIM + column, make_uint4(low.x, low.y, high.x, high.y));
    }
}

@ local bounds = #mask.upper + #mask.lower > 0 and not mask.uses.h -- heads that share keys may differ
// A CTA takes widen_keys keys of a kv head.
extern "C" __global__ void __launch_bounds__(widen_threads) fk_forward_widen(const __grid_constant__ Params p) {
    if (is_off(p)) return;
    start_next();
    const int head = blockIdx.y + gridDim.y * blockIdx.z;
    int tile = blockIdx.x;
@ if problem.packed then
    if (head >= p.num_heads_kv) return;
    const Sequence s = sequence(p, find_sequence<widen_keys>(p.cu_seqlens_k, p.batch, tile));
    const int kv_head = head, before = s.k_offset;
    const i64 heads = p.num_heads_kv;
@ else
    const i64 heads = p.batch * p.num_heads_kv;
    if (head >= heads) return;
    const Sequence s = sequence(p, head / p.num_heads_kv);
    const int kv_head = head - s.b * p.num_heads_kv, before = 0;
@ end
    int first = tile * widen_keys, last = min(s.seqlen_k, first + widen_keys); // behind the last one
    if (tile < 0) return;
@ if bounds then
    Where all; // queries
    static_cast<Sequence &>(all) = s;
    all.q_first = 0, all.q_last = s.seqlen_q - 1;
@   if plan.parts then
    all.first_tile = 0;
@   end
    const TileRange tiles = tile_range(p, all);
    first = max(first, tiles.begin * block_n), last = min(last, tiles.end * block_n);
@ end
    const int num_keys = last - first;
    if (num_keys <= 0) return;
    Element *k = reinterpret_cast<Element *>(p.values), *v = k + heads * p.value_tiles * head_dim;
    const i64 row = i64(head) * p.value_tiles + before; // of the sequence's first key
    widen_rows<head_dim>(k + row * head_dim, p.k + kv_head * p.k_head_stride, p, s, first, num_keys, p.k_batch_stride, p.k_row_stride);
    widen_rows<head_dim_v>(v + row * head_dim_v, p.v + kv_head * p.v_head_stride, p, s, first, num_keys, p.v_batch_stride, p.v_row_stride);
}
