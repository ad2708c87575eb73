@ local async = arch.async_copy and not widens and not plan.parted
@ local load = widens and "ld_global_pair" or "ld_global_v4"
@ local none = widens and "make_uint2(0, 0)" or "make_uint4(0, 0, 0, 0)"
// As TileCopy, of the queries of several heads: row j is query row_query(p, j) of head j % row_heads.
template <int ROWS, int COLS, int COLS_IN_MEMORY> struct HeadsTileCopy : TileCopy<ROWS, COLS, COLS_IN_MEMORY> {
    using Tile = TileCopy<ROWS, COLS, COLS_IN_MEMORY>;
    const Params &p;

    __device__ __forceinline__ HeadsTileCopy(const Params &p_, const Element *first_head) : Tile(first_head, 0), p(p_) {}

    // Starts the copy of the tile whose first row is `row`; those from row + num_rows on become zero.
    __device__ __forceinline__ void issue(u32 tile, int row, int num_rows) {
        const bool in_memory = COLS == COLS_IN_MEMORY || threadIdx.x % Tile::lanes * chunk_elements < COLS_IN_MEMORY;
        const typename Tile::Destination to(tile);
        if (Tile::has_chunk()) {
#pragma unroll
            for (int i = 0; i < Tile::passes; ++i) {
                const int j = threadIdx.x / Tile::lanes + i * Tile::step, q = row_query(p, row + j);
                const bool valid = in_memory && Tile::has_row(j) && j < num_rows;
                const Element *from = Tile::src + (valid ? q * p.q_row_stride + (row + j - q * p.row_heads) * p.q_head_stride : 0);
@ if async then
                if (Tile::has_row(j)) cp_async_16(to.pass(i), from, valid);
@ else
                Tile::staged[i] = valid ? $(load)(from) : $(none);
@ end
            }
        }
@ if async then
        cp_async_commit();
@ end
    }
};
