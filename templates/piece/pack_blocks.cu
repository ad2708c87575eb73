// Which blocks are shown, from the ways in which others keep it, to bits: bit j % 32 of word j / 32 of a row is column j. A
// warp takes a row.
struct BlockTable { // fk_block_params
    const void *data;   // bytes of rows; or where rows begin in indices, [rows + 1]; or entries of rows, [rows]
    const int *indices; // columns
    u32 *bits;          // [rows][words]
    int *others;        // of floats: becomes 1 where one is neither 0 nor -inf, with which bits have no meaning; or null
    int format, columns, width, rows; // fk_block_format; width: from row to row of bytes, of lists; rows: of all tables
};

// A bit for each of four bytes. Byte i times 2^(24 - 7 i) is at bit 24 + i, and no two products meet.
__device__ __forceinline__ u32 bits_of(u32 bytes) {
    const u32 set = (((bytes & 0x7f7f7f7f) + 0x7f7f7f7f) | bytes) >> 7 & 0x01010101;
    return set * 0x01020408 >> 24;
}

// 16 bytes anywhere: of whole words, so that up to three before and behind them are read.
__device__ __forceinline__ uint4 load_bytes(const u8 *from) {
    if (u64(from) % 16 == 0) return *(const uint4 *)from;
    const u32 shift = u64(from) % 4 * 8, *words = (const u32 *)(from - u64(from) % 4);
    u32 bytes[5];
    for (int i = 0; i < 4; ++i) bytes[i] = words[i];
    bytes[4] = shift ? words[4] : 0;
    for (int i = 0; i < 4; ++i) bytes[i] = u32((u64(bytes[i + 1]) << 32 | bytes[i]) >> shift);
    return make_uint4(bytes[0], bytes[1], bytes[2], bytes[3]);
}

// A lane has half a word.
__device__ __forceinline__ void pack_bytes(const u8 *shown, u16 *bits, int columns) {
    const int whole = columns - (u64(shown) % 16 ? 3 : 0); // of so many words may be read
#pragma unroll 2
    for (int half = threadIdx.x % 32; half < (columns + 31) / 32 * 2; half += 32) {
        const int first = 16 * half;
        u32 all = 0;
        if (first + 16 <= whole) {
            const uint4 bytes = load_bytes(shown + first);
            all = bits_of(bytes.x) | bits_of(bytes.y) << 4 | bits_of(bytes.z) << 8 | bits_of(bytes.w) << 12;
        } else {
#pragma unroll 1
            for (int column = first; column < min(first + 16, columns); ++column) all |= u32(shown[column] != 0) << (column - first);
        }
        bits[half] = u16(all);
    }
}

// Floats by their bits, of which `lowest` is -inf. A lane has an element of each of so many words.
template <class T> __device__ __forceinline__ void pack_floats(const T *added, T lowest, u32 *bits, int columns, int *others) {
    constexpr int batch = 32 / sizeof(T);
    const int lane = threadIdx.x % 32;
    bool other = false;
#pragma unroll 1
    for (int first = 0; first < columns; first += 32 * batch) {
        T element[batch];
#pragma unroll
        for (int i = 0; i < batch; ++i) {
            const int column = first + 32 * i + lane;
            element[i] = column < columns ? added[column] : lowest;
        }
        u32 own = 0;
#pragma unroll
        for (int i = 0; i < batch; ++i) {
            const u32 word = __ballot_sync(full_warp, element[i] != lowest);
            other |= element[i] != lowest && T(element[i] << 1) != 0;
            if (lane == i) own = word;
        }
        if (lane < batch && first + 32 * lane < columns) bits[first / 32 + lane] = own;
    }
    if (__any_sync(full_warp, other) && others && lane == 0) *others = 1;
}

extern "C" __global__ void __launch_bounds__(128) fk_pack_blocks(const __grid_constant__ BlockTable p) {
    const int lane = threadIdx.x % 32, words = (p.columns + 31) / 32;
    const i64 row = blockIdx.x * i64(4) + threadIdx.x / 32;
    if (row >= p.rows) return;
    u32 *bits = p.bits + row * words;
    if (p.format == 0) {
        pack_bytes((const u8 *)p.data + row * p.width, (u16 *)bits, p.columns);
        return;
    }
    if (p.format >= 3) {
        if (p.others && __any_sync(full_warp, *p.others)) return; // found by another warp: nobody asks for bits any more
        const i64 first = row * p.width;
        if (p.format == 3) pack_floats((const u32 *)p.data + first, 0xff800000u, bits, p.columns, p.others);
        else pack_floats((const u16 *)p.data + first, u16(p.format == 4 ? 0xfc00 : 0xff80), bits, p.columns, p.others);
        return;
    }
    const int *rows = (const int *)p.data;
    const i64 begin = p.format == 1 ? rows[row] : row * p.width;
    const i64 end = p.format == 1 ? i64(rows[row + 1]) : begin + min(rows[row], p.width);
    for (int word = lane; word < words; word += 32) {
        u32 all = 0;
        for (i64 n = begin; n < end; ++n) {
            const int column = p.indices[n];
            if (column >> 5 == word) all |= 1u << (column & 31);
        }
        bits[word] = all;
    }
}
