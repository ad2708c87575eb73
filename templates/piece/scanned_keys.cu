@ -- A long pattern is asked once: its tiles lie within blocks, but at a sequence's end and in blocks smaller than they are.
@ local asks_groups = not mask.long_walk
    __device__ __forceinline__ void ask(int word, int end) {
        __syncwarp(); // all lanes have read the answer before
        if (leader) {
            st_shared_u32(smem + scan_word, word);
            st_shared_u32(smem + scan_end, end);
            st_shared_u32(smem + scan_turn, scan_parity);
            mbarrier_arrive(smem + scan_asked);
        }
    }

    // Asks about a tile of queries; where the one before is not done with, later.
    __device__ __forceinline__ void ask(int word) {
        if (more) {
            upcoming = word;
        } else {
            row = word;
            ask(word, 0x7fffffff);
        }
    }

    // Takes an answer, and asks for what follows it. Returns its first tile; -1: there is none.
    __device__ __forceinline__ int hear(TileScan &scan) {
        mbarrier_wait(smem + scan_told, scan_parity);
        scan_parity ^= 1;
        const int first = warp_word(smem + scan_first);
        scan.first = first & ~1;
        scan.active = ld_shared_u32(smem + scan_active + 4 * (threadIdx.x % 32));
        scan.full = ld_shared_u32(smem + scan_full + 4 * (threadIdx.x % 32));
        more = first & 1;
        if (more) ask(row, scan.first);
        return next_run(scan, scan.first + 1024);
    }

    // Sends the keys that a tile visits, or only word that there are none. In between, when the first ones have found room, calls
    // `between`, once. `careful`: no tile is taken for whole.
    template <class Between> __device__ __forceinline__ void send_k(const Where &at, bool careful, const Between &between) {
        int to_go = $(plan.q_stages == 1 and 1 or "k_stages");
        TileScan scan;
        int n = -1;
        if (at.b >= 0) n = hear(scan);
@ if plan.q_stages == 2 then -- the tile of queries that follows is claimed late, as what is claimed early may have to wait for a long one
        if (n >= 0 && !more) to_go = max(to_go, int(__reduce_add_sync(full_warp, __popc(scan.active))) - to_go - at.seqlen_k / (32 * block_n));
@ end
        if (at.b >= 0 && n < 0) {
            mbarrier_wait(smem + k_empty + 8 * k.index(), k.parity() ^ 1);
            if (leader) {
                st_shared_u32(smem + k_visit + 4 * k.index(), Visit().word);
                mbarrier_arrive(smem + k_full + 8 * k.index());
            }
            k.next();
        }
        for (; n >= 0; --to_go, k.next()) {
            if (to_go == 0) between();
            const int sent = n;
            const bool masked = !scan.whole();
            const int seen = masked ? $(asks_groups and "seen_by_groups(p, at, sent, careful)" or "0") : Visit::groups;
            n = next_tile(scan, n);
            if (n < 0 && more) n = hear(scan);
@ if stages_keys then
            KeyRows rows;
            if (masked) rows.read(p, at, sent);
@ end
@ if problem.paged then
            const PagedRows paged(p, at, sent);
@ end
            mbarrier_wait(smem + k_empty + 8 * k.index(), k.parity() ^ 1);
@ if stages_keys then
            if (masked) {
                rows.write(smem + smem_k_rows + k.index() * k_row_bytes);
                __syncwarp();
            }
@ end
            if (elect_lane()) {
                const u32 bar = smem + k_full + 8 * k.index();
                st_shared_u32(smem + k_visit + 4 * k.index(), Visit(sent, n < 0, seen).word);
@ if not problem.paged then
                mbarrier_arrive_expect_tx(bar, k_bytes);
                load_tile<block_n, $(layout.d_cols)>(smem + smem_k + k.index() * k_bytes, p.map_k, bar, $(k_row)sent * block_n, $(kv_head), $(k_batch));
@ end
            }
@ if problem.paged then
            paged.load<$(layout.d_cols)>(smem + smem_k + k.index() * k_bytes, p.map_k, smem + k_full + 8 * k.index(), $(kv_head));
@ end
@ if plan.teams > 1 then
            values.send(at, sent);
@ end
        }
        if (to_go >= 0) between();
        if (upcoming != no_more) ask(upcoming);
        upcoming = no_more;
    }
