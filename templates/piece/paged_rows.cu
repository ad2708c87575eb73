@ local box = problem.page_rows
@ local keys = plan.halved and plan.block_n // 2 or plan.block_n
@ while keys % box ~= 0 do box = box // 2 end
// Keys in pages: a tile comes in boxes of as many rows as divide both it and all pages, each from the page that the table names. Rows
// that are not there are not looked up, as the table may end with garbage; what a tile holds in their place is anything.
struct PagedRows {
    static constexpr int box = $(box);
    const int lane = threadIdx.x % 32;
    int num_boxes, page, row; // and of the lane's box the page, and where it begins there: looked up before what the copies wait for

    __device__ __forceinline__ PagedRows(const Params &p, const Where &at, int n) {
        const int key = tile_key(at, n) + lane * box, nth = quotient(key, p.page_size, p.page_inverse);
        num_boxes = (min(at.seqlen_k - own_key(at, n), block_n) + (box - 1)) / box; // 32 at most
        page = lane < num_boxes ? p.page_table[i64(at.b) * p.page_table_stride + nth] : 0;
        row = key - nth * p.page_size;
    }

    // Starts the copies of COLS columns, $(plan.halved and "of them the CTA's own, " or "")which `bar` counts. By the whole warp.
    template <int COLS$(plan.halved and ", int OWN" or "")> __device__ __forceinline__ void load(u32 tile, const TensorMap &map, u32 bar, int head) const {
        if (elect_lane()) mbarrier_arrive_expect_tx(bar, num_boxes * (box * COLS * sizeof(Element)));
        __syncwarp();
        if (lane < num_boxes) {
#pragma unroll
            for (int panel = 0; panel < COLS / panel_columns; ++panel)
                tma_load_4d(tile + panel * (block_n * 128) + $(plan.halved and "(lane * box + int(cluster_rank()) * half_n) % block_n * 128" or "lane * (box * 128)"), &map, bar, $(plan.halved and "panel_column(panel, OWN)" or "panel_columns * panel"), row, head, page);
        }
        __syncwarp();
    }
};
