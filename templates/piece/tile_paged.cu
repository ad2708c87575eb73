@ local async = arch.async_copy and not widens and not plan.parted
@ local load = widens and "ld_global_pair" or "ld_global_v4"
@ local none = widens and "make_uint2(0, 0)" or "make_uint4(0, 0, 0, 0)"
@ if looks_ahead then
// The pages of a tile's rows, $(together) of which are of one page. Those of the tile before are looked up when a tile's copies have been started:
// what waits for a look-up computes nothing meanwhile.
struct PagesAhead {
    static constexpr int together = $(together);
    const Params &p;
    const int *table;
    int first = -1; // row of the tile whose pages they are
    int page[block_n / together];

    __device__ __forceinline__ PagesAhead(const Params &p_, int b) : p(p_), table(p_.page_table + b * p_.page_table_stride) {}

    __device__ __forceinline__ void look_up(int row, int num_rows) {
        first = row;
#pragma unroll
        for (int i = 0; i < block_n / together; ++i)
            page[i] = i * together < num_rows ? table[quotient(row + i * together, p.page_size, p.page_inverse)] : 0;
    }

    // Of tile n, which has num_rows rows.
    __device__ __forceinline__ void want(int n, int num_rows) {
        if (first != n * block_n) look_up(n * block_n, num_rows);
    }
    __device__ __forceinline__ void go_ahead() {
        if (first >= block_n) look_up(first - block_n, block_n);
    }
};

@ end
// As $(copy), of a matrix whose rows lie in pages: row j is row j % page_size of page pages[j / page_size]. Rows that are not
// there are not looked up: the table may end with garbage.$(problem.page_rows > 1 and " Where rows are known to lie together, one look-up serves them." or "")
template <int ROWS, int COLS, int COLS_IN_MEMORY> struct PagedTileCopy : $(copy)<ROWS, COLS, COLS_IN_MEMORY> {
    using Tile = $(copy)<ROWS, COLS, COLS_IN_MEMORY>;
    using Tile::passes;
    using Tile::row_stride;
    const Params &p;
    const KeyElement *const heads;
    const i64 head_stride;
    const int head;
@ if not looks_ahead then
    const int *pages;
@ end
    i64 page_stride;
    int row; // that the thread copies first
@ if problem.page_rows > 1 then
    static constexpr int together = ROWS < $(problem.page_rows) ? ROWS : $(problem.page_rows); // rows of a tile that are of one page
    static constexpr int alike = together % Tile::step == 0 && ROWS % together == 0 && $(problem.page_rows) % together == 0 ? together / Tile::step : 1; // passes
@ end

    __device__ __forceinline__ PagedTileCopy(const Params &p_, const KeyElement *heads_, int head_, i64 head_stride_, i64 row_stride_, i64 page_stride_, int b)
        : Tile(heads_, 0), p(p_), heads(heads_), head_stride(head_stride_), head(head_), $(looks_ahead and "" or "pages(p_.page_table + b * p_.page_table_stride), ")page_stride(page_stride_),
          row(threadIdx.x / Tile::lanes) {
        row_stride = row_stride_;
    }

    __device__ __forceinline__ void move(int rows) { row += rows; }
    // The thread's columns of row 0 of page 0, which no register keeps.
    __device__ __forceinline__ const KeyElement *columns() const { return Tile(heads + opaque(head) * head_stride, 0).src; }

    template <bool WHOLE> __device__ __forceinline__ void issue(u32 tile, int num_rows$(looks_ahead and ", const PagesAhead &known" or "")) {
        const bool in_memory = COLS == COLS_IN_MEMORY || threadIdx.x % Tile::lanes * chunk_elements < COLS_IN_MEMORY;
        const typename Tile::Destination to(tile);
        if (Tile::has_chunk()) {
@ if looks_ahead then
            copy_together<WHOLE>(to, num_rows, in_memory, known);
@ elseif problem.page_rows > 1 then
            if constexpr (alike > 1)
                copy_together<WHOLE>(to, num_rows, in_memory);
            else
                copy_rows<WHOLE>(to, num_rows, in_memory);
@ else
            copy_rows<WHOLE>(to, num_rows, in_memory);
@ end
        }
@ if async then
        cp_async_commit();
@ end
    }

@ local function copy(pass, from)
@   if async then
                    if (has_row($(pass))) cp_async_16(to.pass($(pass)), $(from), valid);
@   else
                    Tile::staged[$(pass)] = valid ? $(load)($(from)) : $(none);
@   end
@ end
@ if not looks_ahead then
    template <bool WHOLE> __device__ __forceinline__ void copy_rows(const typename Tile::Destination &to, int num_rows, bool in_memory) {
        const KeyElement *const src = columns();
        constexpr int most = Tile::lanes * chunk_elements == COLS ? 8 : 4, group = passes % most == 0 ? most : passes < most ? passes : 1; // look-ups that wait together
        const int first = opaque(row); // the places within pages are computed anew: registers are dearer
@ if async then
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
@ copy("i + g", "src + place")
            }
        }
    }

@ end
@ if problem.page_rows > 1 then
    // One look-up for the rows of `alike` passes. The tile's first row is there, and so is page 0.
    template <bool WHOLE> __device__ __forceinline__ void copy_together(const typename Tile::Destination &to, int num_rows, bool in_memory$(looks_ahead and ", const PagesAhead &known" or "")) {
        const KeyElement *const src = columns();
        const i64 pass_stride = opaque(Tile::step * row_stride);
#pragma unroll
        for (int i = 0; i < passes; i += alike) {
            const int j = row + i * Tile::step, page = WHOLE || i * Tile::step < num_rows ? page_of(j - int(threadIdx.x) / Tile::lanes) : 0;
            const i64 at = $(looks_ahead and "known.page[i * Tile::step / together]" or "pages[page]");
            const KeyElement *from = src + at * page_stride + (j - page * p.page_size) * row_stride;
#pragma unroll
            for (int k = i; k < i + alike; ++k) {
                const bool valid = in_memory && is_there<WHOLE>(k, num_rows);
@   copy("k", "from")
                from += pass_stride;
            }
        }
    }

@ end
    __device__ __forceinline__ int page_of(int j) const { return quotient(j, p.page_size, p.page_inverse); }
    static __device__ __forceinline__ bool has_row(int pass) { return Tile::has_row(threadIdx.x / Tile::lanes + pass * Tile::step); }
    template <bool WHOLE> static __device__ __forceinline__ bool is_there(int pass, int num_rows) {
        return has_row(pass) && (WHOLE || int(threadIdx.x / Tile::lanes) + pass * Tile::step < num_rows);
    }
};
