@ -- Of a mask that comes as words of 32 keys, mask.words by `word`: what each 64 queries see of each tile of keys.
@ -- Where all batch entries, or all heads, read the same words, as where an array repeats, this is looked up of one of them.
@ local function alike(name)
@   local array, indices = mask.words:match("^([%w_]+)_at%(p, ([%w_, ]+)%)$")
@   if name == "b" and (problem.packed or problem.seqused_k) then return "false" end -- entries have lengths of their own
@   if not mask.words:find("%f[%w_]" .. name .. "%f[^%w_]") then return "true" end
@   local strides, slot = {}, nil
@   for i, a in ipairs(arrays) do slot = a.name == array and i - 1 or slot end
@   if not slot then return "false" end -- something else is made of it
@   local d = 0
@   for index in indices:gmatch("[^, ]+") do
@     if index == name then strides[#strides + 1] = ("p.array[%d].stride[%d]"):format(slot, d) end
@     d = d + 1
@   end
@   return table.concat(strides, " + ") .. " == 0"
@ end
// ---- before: what each 64 queries see of each tile of keys ----

// Bits 0 to `last`.
__device__ __forceinline__ u32 bits_to(int last) { return last < 0 ? 0 : 0xffffffffu >> (31 - min(last, 31)); }

// Bits of a byte: some pair is seen; all are, where all keys are there.
constexpr u32 seen_some = 1, seen_all = 2;
constexpr int seen_rows = 64, tile_words = block_n / 32, strip_tiles = 32 / tile_words; // of a strip a lane has a word

// The bytes of a head: [groups of queries][tiles of keys, and whether some query may see one key alone].
__device__ __forceinline__ int seen_groups(const Params &p) { return int(u32(p.seqlen_q + (seen_rows - 1)) / seen_rows); }
__device__ __forceinline__ int seen_tiles(const Params &p) { return int(u32(p.seqlen_k + (block_n - 1)) / block_n); }
__device__ __forceinline__ bool alike_batch(const Params &p) { return $(alike("b")); }
__device__ __forceinline__ bool alike_heads(const Params &p) { return $(alike("h")); }
__device__ __forceinline__ u8 *seen_by_group(const Params &p, int b, int h, int group) {
    const i64 head = (alike_batch(p) ? 0 : i64(b) * p.num_heads_q) + (alike_heads(p) ? 0 : h);
    return p.seen + (head * seen_groups(p) + group) * (seen_tiles(p) + 1);
}

// What queries first to last see of a tile; of others that share 64 with them, too.
__device__ __forceinline__ u32 seen_of_tile(const Params &p, int b, int h, int first, int last, int tile) {
    const u8 *seen = seen_by_group(p, b, h, first / seen_rows) + tile;
    u32 some = 0, all = seen_all;
#pragma unroll 1
    for (int n = last / seen_rows - first / seen_rows; n >= 0; --n, seen += seen_tiles(p) + 1) some |= *seen, all &= *seen;
    return some & seen_some | all;
}
@ if problem.op == "fwd" and plan.family == "wgmma" then

// Whether some of these queries may see one key alone. Its weight is to be 1, so that their reference must be their maximum.
__device__ __forceinline__ bool sees_one(const Params &p, int b, int h, int first, int last) {
    return seen_of_tile(p, b, h, first, last, seen_tiles(p)) & seen_some;
}
@ end

// A CTA has 64 queries of a head, 8 to a warp, and goes through the strips; a lane has a word of each query.
extern "C" __global__ void __launch_bounds__(256) fk_seen_tiles(const __grid_constant__ Params p) {
    if (is_off(p)) return;
    constexpr int warps = 8, rows = seen_rows / warps;
@ if problem.op == "fwd" and plan.family == "wgmma" then
    start_next();
@ end
    const int head = blockIdx.y + gridDim.y * blockIdx.z, entry = head / p.num_heads_q;
    if (entry >= p.batch) return;
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, first = blockIdx.x * seen_rows, num_tiles = seen_tiles(p);
    Where at;
    static_cast<Sequence &>(at) = sequence(p, entry);
    at.h = head - entry * p.num_heads_q;
    if ((entry > 0 && alike_batch(p)) || (at.h > 0 && alike_heads(p)) || first >= at.seqlen_q) return;
    u8 *out = seen_by_group(p, entry, at.h, blockIdx.x);
@ scalars("")
    u32 many = 0; // of the warp's queries, those that see two keys of a strip
#pragma unroll 1
    for (int tile = 0, turn = 0; tile < num_tiles; tile += strip_tiles, ++turn) {
        const int word = tile * tile_words + lane;
        const u32 keys = lane < strip_tiles * tile_words ? bits_to(at.seqlen_k - 1 - 32 * word) : 0; // of the word, that there are
        u32 seen[rows], some = 0, all = full_warp;
#pragma unroll
        for (int i = 0; i < rows; ++i) {
            const int q = min(first + rows * warp + i, at.seqlen_q - 1);
            seen[i] = u32($(mask.words)) & keys;
        }
#pragma unroll
        for (int i = 0; i < rows; ++i) {
            some |= seen[i], all &= seen[i];
            const u32 lanes = __ballot_sync(full_warp, seen[i] != 0);
            const bool twice = __any_sync(full_warp, seen[i] & (seen[i] - 1)) || lanes & (lanes - 1);
            many |= u32(twice) << i;
        }
        const u32 place = smem_base() + turn % 2 * (8 * 32 * warps); // two words of each thread, while others may read those before
        st_shared_u32(place + 8 * threadIdx.x, some);
        st_shared_u32(place + 8 * threadIdx.x + 4, all | ~keys);
        __syncthreads();
        if (warp > 0) continue;
        all |= ~keys;
        for (int i = 1; i < warps; ++i) {
            some |= ld_shared_u32(place + 8 * (32 * i + lane));
            all &= ld_shared_u32(place + 8 * (32 * i + lane) + 4);
        }
        const u32 some_of = __ballot_sync(full_warp, some != 0), all_of = __ballot_sync(full_warp, all == full_warp);
        if (lane < strip_tiles && tile + lane < num_tiles) {
            constexpr u32 words = (1u << tile_words) - 1;
            const bool has_some = some_of >> lane * tile_words & words, has_all = !(~all_of >> lane * tile_words & words);
            out[tile + lane] = (has_some ? seen_some : 0) | (has_all ? seen_all : 0);
        }
    }
    const bool sees_few = __syncthreads_or(many != (1u << rows) - 1);
    if (threadIdx.x == 0) out[num_tiles] = sees_few ? seen_some : 0;
}
