@ -- How threads read tiles of an array that lie in shared memory: what the accumulator of a score has at its place.
@ local halves = staged.bytes == 2
@ local list = {} -- indices of a row
@ for d in staged.declared:gmatch("%[(%l)%]") do list[#list + 1] = d == "q" and "q" or d ~= "k" and "at." .. d or nil end
@ local shift = plan.parts and walk == "k" and " + i64(at.first_tile * block_n) * stride" or "" -- a part counts keys from its own first one
@ local row_at = staged.name .. "_row_at(p, " .. table.concat(list, ", ") .. ")"
// A staged tile has panels of $(128 // staged.bytes) keys, of which each query has 128 bytes, whose chunks of 16 TMA has swizzled by the row.
@ if walk == "q" then
constexpr int array_panels = own_n / $(128 // staged.bytes);
constexpr u32 array_panel = $(layout.array_bytes) / array_panels; // bytes from one to the next
@ end
@ if walk == "q" and (not halves or staged.staged_grad) then
// Where $(halves and "the gradients, in panels of 32 keys," or "the elements") of queries 2 (lane % 4) and keys lane / 4 of the warp's lie; and of score i of row r. No two lanes share a bank.
__device__ __forceinline__ u32 word_place(u32 tile) {
    const int lane = lane_anew(), q = 2 * (lane % 4);
    return tile + warp_row() / 32 * 8192 + q * 128 + ((warp_row() % 32 / 4 + lane / 16 ^ q) << 4) + lane / 4 % 4 * 4;
}
__device__ __forceinline__ u32 word_place(u32 first, int i, int r) { return (first ^ r * 32 ^ i % 2 * 16) + i % 2 * 128 + i / 2 * 1024; }
@ end
@ if walk == "q" and halves then
// Where query `lane` has the warp's first eight keys.
__device__ __forceinline__ u32 half_place(u32 tile) {
    const int lane = lane_anew();
    return tile + warp_row() / 64 * array_panel + lane * 128 + ((warp_row() % 64 / 8 ^ lane % 8) << 4);
}

// Pairs of queries of four atoms of 8, from score i of row r on, as accumulators have them.
__device__ __forceinline__ void read_panel(u32 (&pairs)[4], u32 first, int i, int r) { ldmatrix_x4_trans(pairs, (first ^ r * 16) + i / 8 * 4096); }
@ elseif halves then
// Where query lane % 8 of the warp's has the keys of atom lane / 8.
__device__ __forceinline__ u32 half_place(u32 tile) {
    const int lane = lane_anew();
    return tile + (warp_row() % 64 + lane % 8) * 128 + ((lane / 8 ^ lane % 8) << 4);
}

// Pairs of keys of four atoms of 8, from score i of row r on, as accumulators have them.
__device__ __forceinline__ void read_panel(u32 (&pairs)[4], u32 first, int i, int r) { ldmatrix_x4(pairs, (first ^ i / 8 % 2 * 64) + i / 16 * 8192 + r * 1024); }
@ elseif walk == "k" then
// Where the elements of queries lane / 4 and keys 2 (lane % 4) of the warp's lie; and of score i of row r.
__device__ __forceinline__ u32 word_place(u32 tile) {
    const int lane = lane_anew();
    return tile + (warp_row() % 64 + lane / 4) * 128 + ((lane / 2 % 2 ^ lane / 4) << 4) + lane % 2 * 8;
}
__device__ __forceinline__ u32 word_place(u32 first, int i, int r) { return (first ^ i / 2 % 4 * 32) + i / 8 * 8192 + r * 1024 + i % 2 * 4; }

// Pairs of keys of the panel's four atoms of 8, from score i of row r on. Shared memory serves four rows at once, which would share banks
// in twos: odd rows read the atom that is two further on or back.
__device__ __forceinline__ void read_panel(uint2 (&pairs)[4], u32 first, int i, int r) {
    const bool odd = lane_anew() / 4 % 2;
#pragma unroll
    for (int j = 0; j < 4; ++j) pairs[j] = ld_shared_v2(word_place(odd ? first ^ 64 : first, i + 2 * j, r));
#pragma unroll
    for (int j = 0; j < 2; ++j) {
        const uint2 a = pairs[j], b = pairs[j + 2];
        pairs[j] = make_uint2(odd ? b.x : a.x, odd ? b.y : a.y);
        pairs[j + 2] = make_uint2(odd ? a.x : b.x, odd ? a.y : b.y);
    }
}
@ end

// Each warp brings what its lanes read, where no map describes the array's rows.
__device__ __forceinline__ void bring_tile(u32 tile, int n, const Params &p, const Where &at) {
    const int lane = lane_anew(), stride = int(p.array[$(slot)].stride[$(staged.rank - 1)]) * $(staged.bytes);
@ if halves then
    const bool together = $(staged.name)_pairs(p) && at.seqlen_k % 2 == 0; // two keys, whose elements share a word
@   if walk == "k" then
    constexpr int lines = ($(plan.score_block) + 63) / 64 * 16; // a query's 64 keys each
@   else
    constexpr int lines = part_m / 4; // of 16 keys of four queries
@   end
#pragma unroll 4
    for (int i = 0; i < lines; ++i) {
@   if walk == "k" then
        const int row = warp_row() % 64 + i % 16, q = min(opaque(at.q_first) + warp_row() + i % 16, at.seqlen_q - 1);
        const int k = n * $(plan.score_block) + i / 16 * 64 + 2 * lane;
        const u32 to = tile + i / 16 * 8192 + row * 128 + ((lane / 4 ^ row % 8) << 4) + lane % 4 * 4;
@   else
        const int row = 4 * i + lane / 8, q = min(n * part_m + row, at.seqlen_q - 1);
        const int k = opaque(at.k_first) + warp_row() + 2 * (lane % 8);
        const u32 to = tile + warp_row() / 64 * array_panel + row * 128 + ((warp_row() % 64 / 8 + lane / 4 % 2 ^ row % 8) << 4) + lane % 4 * 4;
@   end
        const char *from = $(row_at)$(shift);
        if (together) cp_async_4(to, from + i64(min(k, at.seqlen_k - 2)) * 2);
        else st_shared_u32(to, ld_global_half_at(from, min(k, at.seqlen_k - 1), stride) | ld_global_half_at(from, min(k + 1, at.seqlen_k - 1), stride) << 16);
    }
@ else
    const u32 first = word_place(tile);
#pragma unroll 4
    for (int i = 0; i < s_atoms * 4; ++i) {
        const int r = i % 2, $(own) = min(opaque(at.$(own)_first) + warp_row() + 8 * r + lane / 4, at.seqlen_$(own) - 1);
        const int $(walk) = min(n * $(plan.score_block) + warp_col() + 8 * (i / 4) + 2 * (lane % 4) + i / 2 % 2, at.seqlen_$(walk) - 1);
        cp_async_4(word_place(first, i / 2, r), $(row_at)$(shift) + i64(k) * stride);
    }
@ end
    cp_async_commit();
    cp_async_wait<0>();
@ if halves then
    __syncwarp(); // other lanes read it
@ end
}
