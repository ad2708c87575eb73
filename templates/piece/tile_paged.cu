// As TileCopy, of a matrix whose rows lie in pages: row j is row j % page_size of page pages[j / page_size]. Rows that are not
// there are not looked up: the table may end with garbage.
template <int ROWS, int COLS, int COLS_IN_MEMORY> struct PagedTileCopy : TileCopy<ROWS, COLS, COLS_IN_MEMORY> {
    using Tile = TileCopy<ROWS, COLS, COLS_IN_MEMORY>;
    using Tile::passes;
    using Tile::row_stride;
    using Tile::src; // the thread's columns of row 0 of page 0
    const Params &p;
    const int *pages;
    i64 page_stride;
    int row; // that the thread copies first

    __device__ __forceinline__ PagedTileCopy(const Params &p_, const Element *matrix, i64 row_stride_, i64 page_stride_, int b)
        : Tile(matrix, 0), p(p_), pages(p_.page_table + b * p_.page_table_stride), page_stride(page_stride_),
          row(threadIdx.x / Tile::lanes) {
        row_stride = row_stride_;
    }

    __device__ __forceinline__ void move(int rows) { row += rows; }

    template <bool WHOLE> __device__ __forceinline__ void issue(u32 tile, int num_rows) {
        const bool in_memory = COLS == COLS_IN_MEMORY || threadIdx.x % Tile::lanes * chunk_elements < COLS_IN_MEMORY;
        const typename Tile::Destination to(tile);
        if (Tile::has_chunk()) {
            constexpr int group = passes % 8 == 0 ? 8 : passes < 8 ? passes : 1; // look-ups that wait together
            const int first = opaque(row); // the places within pages are computed anew: registers are dearer
@ if arch.async_copy then
#pragma unroll(passes <= 8 ? passes : 1)
@ else
#pragma unroll
@ end
            for (int i = 0; i < passes; i += group) {
                int page[group];
#pragma unroll
                for (int g = 0; g < group; ++g)
                    if (is_there<WHOLE>(i + g, num_rows)) page[g] = pages[page_of(row + (i + g) * Tile::step)];
#pragma unroll
                for (int g = 0; g < group; ++g) {
                    const int j = first + (i + g) * Tile::step;
                    const bool valid = in_memory && is_there<WHOLE>(i + g, num_rows);
                    const i64 place = valid ? page[g] * page_stride + (j - page_of(j) * p.page_size) * row_stride : 0;
@ if arch.async_copy then
                    if (has_row(i + g)) cp_async_16(to.pass(i + g), src + place, valid);
@ else
                    Tile::staged[i + g] = valid ? ld_global_v4(src + place) : make_uint4(0, 0, 0, 0);
@ end
                }
            }
        }
@ if arch.async_copy then
        cp_async_commit();
@ end
    }

    __device__ __forceinline__ int page_of(int j) const { return quotient(j, p.page_size, p.page_inverse); }
    static __device__ __forceinline__ bool has_row(int pass) { return Tile::has_row(threadIdx.x / Tile::lanes + pass * Tile::step); }
    template <bool WHOLE> static __device__ __forceinline__ bool is_there(int pass, int num_rows) {
        return has_row(pass) && (WHOLE || int(threadIdx.x / Tile::lanes) + pass * Tile::step < num_rows);
    }
};
