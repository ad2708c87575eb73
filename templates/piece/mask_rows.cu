// What the mask reads along a tile's queries alone, or along its keys alone: a row of elements for each such array. The tile's producer
// reads them, its lanes together, and puts them beside the tile, from where consumers take them for four keys at a time.
@ -- The names are those of arrays' reads, so that within the element test these values take their place.
@ local rows = { q = {}, k = {} }
@ for _, array in ipairs(arrays) do
@   if array.mask_row ~= "" then table.insert(rows[array.mask_row], array) end
@ end
@ local function element(array, last)
@   local list = {}
@   for d in array.declared:gmatch("%[(%l)%]") do list[#list + 1] = d == array.mask_row and last or "at." .. d end
@   local read = array.name .. "_at(p, " .. table.concat(list, ", ") .. ")"
@   return array.type == "float" and "__float_as_uint(" .. read .. ")" or read
@ end
constexpr u32 smem_q_rows = $(layout.rows), q_row_bytes = $(layout.q_row_bytes); // of a buffer of Q
constexpr u32 smem_k_rows = smem_q_rows + q_stages * q_row_bytes, k_row_bytes = $(layout.k_row_bytes); // of one of K
@ for _, side in ipairs({ "q", "k" }) do
@   local block, first = side == "q" and "block_m" or "block_n", side == "q" and "at.q_first" or "n * block_n"
@   local position = side == "q" and "lane" or "lane & 16 | lane % 8 / 2 * 4 | lane / 8 % 2 * 2 | lane % 2"
@   if #rows[side] > 0 then

// Elements of $(side == "q" and "the tile's queries" or "key tile n's keys")$(side == "k" and ", those of each 16 in the order in which lanes hold scores: 2 t, 2 t + 1, 2 t + 8, 2 t + 9" or ""); past the end the last one's.
struct $(side == "q" and "QueryRows" or "KeyRows") {
    u32 element[$(#rows[side])][($(block) + 31) / 32];

    __device__ __forceinline__ void read(const Params &p, const Where &at$(side == "k" and ", int n" or "")) {
#pragma unroll
        for (int j = 0; j < ($(block) + 31) / 32; ++j) {
            const int $(side) = min($(first) + 32 * j + int(threadIdx.x % 32), at.seqlen_$(side) - 1);
@     for i, array in ipairs(rows[side]) do
            element[$(i - 1)][j] = $(element(array, side));
@     end
        }
    }

    __device__ __forceinline__ void write(u32 to) const {
        const int lane = lane_anew(), position = $(position);
#pragma unroll
        for (int i = 0; i < $(#rows[side]); ++i)
#pragma unroll
            for (int j = 0; j < ($(block) + 31) / 32; ++j)
                if ($(block) % 32 == 0 || 32 * j + lane < $(block)) st_shared_u32(to + 4 * (i * $(block) + 32 * j + position), element[i][j]);
    }
};
@   end
@ end
