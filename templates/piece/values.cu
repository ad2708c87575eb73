// ---- before: the values as tensor cores take 8 bits, keys along rows ----
//
// values: [kv heads of all batch entries][tiles of block_n keys][dv_pad columns of v$(layout.o_cols > layout.dv_pad and ", then eight of ones" or "")][128 bytes], of which the first block_n are keys;
// those past the sequence's end are zeros, whatever memory holds there. Keys of 16 are in the order in which a lane's accumulators of scores become its part of operand A, so that
// weights need no exchange between lanes: of four bytes at 4 t, two are keys 2 t and 2 t + 1, and two are keys 2 t + 8 and 2 t + 9.
constexpr int value_keys = block_n, value_pitch = 128;
constexpr int values_threads = 64;

// The first tile of a sequence, of those of a kv head.
__device__ __forceinline__ int value_tile(const Sequence &s) { return $(problem.packed and "s.k_offset / value_keys + s.b" or "0"); }

// Bytes j of a, b, c and d become out[j].
__device__ __forceinline__ void transpose_bytes(u32 (&out)[4], u32 a, u32 b, u32 c, u32 d) {
    const u32 ab_low = byte_permute(a, b, 0x5140), ab_high = byte_permute(a, b, 0x7362);
    const u32 cd_low = byte_permute(c, d, 0x5140), cd_high = byte_permute(c, d, 0x7362);
    out[0] = byte_permute(ab_low, cd_low, 0x5410);
    out[1] = byte_permute(ab_low, cd_low, 0x7632);
    out[2] = byte_permute(ab_high, cd_high, 0x5410);
    out[3] = byte_permute(ab_high, cd_high, 0x7632);
}

// Sixteen columns of sixteen keys, of which two times eight lie `row_stride` bytes apart; the first `num_keys` of them exist. Columns of
// the result are value_pitch bytes apart.
__device__ __forceinline__ void transpose_values(u8 *to, const Element *from, const Element *from_8, i64 row_stride, int num_keys) {
    uint4 v[16];
#pragma unroll
    for (int k = 0; k < 16; ++k)
        v[k] = k < num_keys ? ld_global_v4((k < 8 ? from : from_8) + k % 8 * row_stride) : make_uint4(0, 0, 0, 0);
#pragma unroll
    for (int word = 0; word < 4; ++word) {
        u32 columns[4][4]; // of each four keys
#pragma unroll
        for (int t = 0; t < 4; ++t) {
            const uint4 rows[4] = {v[2 * t], v[2 * t + 1], v[2 * t + 8], v[2 * t + 9]};
            u32 part[4];
#pragma unroll
            for (int i = 0; i < 4; ++i) part[i] = word == 0 ? rows[i].x : word == 1 ? rows[i].y : word == 2 ? rows[i].z : rows[i].w;
            transpose_bytes(columns[t], part[0], part[1], part[2], part[3]);
        }
#pragma unroll
        for (int j = 0; j < 4; ++j)
            st_global_v4(to + (4 * word + j) * value_pitch, make_uint4(columns[0][j], columns[1][j], columns[2][j], columns[3][j]));
    }
}

@ if problem.paged then
// Where key `key` of a sequence is, or, if it is not there, anywhere: pages have multiples of eight rows.
__device__ __forceinline__ const Element *paged_values(const Params &p, const Sequence &s, int key) {
    const int nth = quotient(key, p.page_size, p.page_inverse), page = key < s.seqlen_k ? p.page_table[s.b * p.page_table_stride + nth] : 0;
    return p.v + page * p.v_batch_stride + (key - nth * p.page_size) * p.v_row_stride;
}

@ end
// A CTA takes a tile.
extern "C" __global__ void __launch_bounds__(values_threads) fk_forward_values(const __grid_constant__ Params p) {
    if (is_off(p)) return;
    start_next();
    const int head = blockIdx.y + gridDim.y * blockIdx.z;
    int tile = blockIdx.x; // and of its sequence, below
@ if problem.packed then
    if (head >= p.num_heads_kv) return;
    const Sequence s = sequence(p, find_sequence<value_keys>(p.cu_seqlens_k, p.batch, tile));
    const int kv_head = head;
@ else
    if (head >= p.batch * p.num_heads_kv) return;
    const Sequence s = sequence(p, head / p.num_heads_kv);
    const int kv_head = head - s.b * p.num_heads_kv;
@ end
    const int num_keys = s.seqlen_k - tile * value_keys;
    if (tile < 0 || num_keys <= 0) return; // nobody reads it
@ if not problem.paged then
    const Element *from = p.v + k_start(s, p.v_batch_stride, p.v_row_stride) + kv_head * p.v_head_stride + tile * value_keys * p.v_row_stride;
@ end
    u8 *to = p.values + (i64(head) * p.value_tiles + blockIdx.x) * ($(layout.o_cols) * value_pitch);
@ if layout.o_cols > layout.dv_pad then
    const u32 ones = 0x38383838;
    st_global_v4(to + dv_pad * value_pitch + 16 * threadIdx.x, make_uint4(ones, ones, ones, ones)); // 1 KB, of so many threads
@ end
    constexpr int chunks = dv_pad / 16;
    for (int i = threadIdx.x; i < chunks * (value_keys / 16); i += values_threads) {
        const int chunk = i % chunks, group = i / chunks; // so that a warp reads whole rows, and writes 32 bytes at least
@ if problem.paged then
        const i64 at = kv_head * p.v_head_stride + chunk * 16;
        const int key = tile * value_keys + group * 16;
        const Element *rows = paged_values(p, s, key) + at, *rows_8 = paged_values(p, s, key + 8) + at;
@ else
        const Element *rows = from + group * 16 * p.v_row_stride + chunk * 16, *rows_8 = rows + 8 * p.v_row_stride;
@ end
        transpose_values(to + chunk * 16 * value_pitch + group * 16, rows, rows_8, p.v_row_stride, num_keys - group * 16);
    }
}
