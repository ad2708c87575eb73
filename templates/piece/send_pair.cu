    // One of Q and dO: both CTAs load half, and each counts the whole; `tail` counts where rows are to be cleared.
    template <int COLS>
    __device__ __forceinline__ void send_shared(u32 tile, const TensorMap &map, u32 is_full, u32 tail, u32 bit, const Where &at, int n, u32 others) {
        const int row = $(problem.packed and "at.q_offset + " or "")n * block_m;
@   if problem.packed then
        const int num_rows = at.seqlen_q - n * block_m;
        const u32 bar = smem + (num_rows < block_m ? tail : is_full);
@   else
        const u32 bar = smem + is_full;
@   end
        if (elect_lane()) {
            mbarrier_arrive_expect_tx(bar, block_m * COLS * 2 + others);
            load_shared_tile<block_m, COLS>(tile, map, bar, row, at.h, $(batch));
            if (others) {
                const i64 statistics = padded_start(p, at, at.h) + n * block_m;
                const u32 rows = smem + smem_rows + ring.index() * (block_m * 8);
                bulk_load(rows, p.lse_log2 + statistics, block_m * 4, bar);
                bulk_load(rows + block_m * 4, p.delta + statistics, block_m * 4, bar);
            }
        }
@   if problem.packed then
        if (num_rows < block_m) {
            wait_tail(tail, bit);
            clear_rows<block_m, COLS>(tile, num_rows);
            pass_tail(smem + is_full);
        }
@   end
    }

    __device__ __forceinline__ void send_tile(const Where &at, int word) {
        const int n = word >> 2;
        const u32 i = free_stage();
        if (elect_lane()) { // the lane that announces the bytes
            st_shared_u32(smem + stage_tile + 8 * i, word);
            st_shared_u32(smem + stage_tile + 8 * i + 4, at.h);
        }
        send_shared<$(layout.d_cols)>(smem + smem_q + i * stage_bytes, p.map_q, full + 8 * i, tile_tail + 8 * i, 2 + i, at, n, block_m * 8);
        mbarrier_wait(smem + dout_empty, dout_parity);
        dout_parity ^= 1;
        send_shared<$(layout.dv_cols)>(smem + smem_dout, p.map_dout, dout_full, dout_tail, 1, at, n, 0);
        ring.next();
    }
