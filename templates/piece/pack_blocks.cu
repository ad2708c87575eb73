// Which blocks are shown, from the ways in which others keep it, to bits: bit j % 32 of word j / 32 of a row is column j. A
// warp takes a row of one table.
struct BlockTable { // fk_block_params
    const void *data;   // bytes [rows][columns]; or where rows begin in indices, [rows + 1]; or entries of rows, [rows]
    const int *indices; // columns
    u32 *bits;          // [rows][words]
    int format, columns, width; // fk_block_format; width: from row to row of lists
};

extern "C" __global__ void __launch_bounds__(32) fk_pack_blocks(const __grid_constant__ BlockTable p) {
    const int lane = threadIdx.x, words = (p.columns + 31) / 32;
    const i64 row = blockIdx.x;
    u32 *bits = p.bits + row * words;
    if (p.format == 0) {
        const u8 *shown = (const u8 *)p.data + row * p.columns;
        for (int word = 0; word < words; ++word) {
            const int column = 32 * word + lane;
            const u32 all = __ballot_sync(full_warp, column < p.columns && shown[column] != 0);
            if (lane == 0) bits[word] = all;
        }
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
