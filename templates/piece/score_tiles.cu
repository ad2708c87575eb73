// What score terms read for each query and key of a pair of tiles: the producer of K copies it row by row beside the keys, a tile or more
// before it is needed, and consumers read it for two neighbours at once.
@ local tiles, whole = {}, {}
@ for _, array in ipairs(arrays) do
@   if array.key_tiles then tiles[#tiles + 1], whole[#whole + 1] = array, array.name .. "_rows(p)" end
@   if array.key_pairs and not array.key_tiles then whole[#whole + 1] = array.name .. "_pairs(p)" end
@ end
constexpr u32 smem_score_tiles = $(layout.score_tiles), score_tile_bytes = $(layout.score_tile_bytes), score_pitch = $(layout.score_pitch);
constexpr u32 score_stage_bytes = $(#tiles) * score_tile_bytes; // of a buffer of K

// Whether key tile n has them: no other reads of it are then needed.
__device__ __forceinline__ bool has_score_tiles(int n, const Params &p, const Where &at) {
    return (n + 1) * block_n <= at.seqlen_k && $(table.concat(whole, " && "));
}

constexpr u32 score_copied = $(#tiles) * block_m * block_n * 4; // bytes

// Starts the copies, which `bar` counts; all lanes of the warp together. Of rows past the end the last one's.
__device__ __forceinline__ void load_score_tiles(u32 to, u32 bar, int n, const Params &p, const Where &at) {
    const int b = at.b, h = at.h;
    for (int row = threadIdx.x % 32; row < block_m; row += 32) {
        const int q = min(at.q_first + row, at.q_last);
@ for i, array in ipairs(tiles) do
@   local list = { "p" }
@   for d in array.declared:gmatch("%[(%l)%]") do list[#list + 1] = d ~= "k" and d or nil end
        bulk_load(to + $(i - 1) * score_tile_bytes + row * score_pitch, $(array.name)_row_at($(table.concat(list, ", "))) + n * (block_n * 4), block_n * 4, bar);
@ end
    }
}
