@ -- A long pattern is asked once: its tiles lie within blocks, but at a sequence's end and in blocks smaller than they are.
@ local asks_groups = not mask.long_walk and plan.consumers > 1
@ if scanner then
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
@ else
    // Looks for the tiles that a tile of queries visits below tile `end`. Returns the first, the highest; -1: there is none.
    __device__ __forceinline__ int look(TileScan &scan, const Where &at, bool careful, int end) {
        TileRange tiles = tile_range(p, at);
@   if mask.leading_rows > 0 then
        if (at.split >= 0) tiles = split_range(tiles, p, at);
@   end
        if (careful) tiles.full_begin = tiles.full_end = tiles.begin;
        const int n = find_tile(scan, min(tiles.end, end), tiles, p, at);
        more = n >= 0 && scan.first > tiles.begin;
        return n;
    }
@ end

    // Sends tile n, what its Visit says, and the values of it where this warp loads them, too.
    __device__ __forceinline__ void send_tile(const Where &at, int n, bool last, bool masked, int seen) {
@ if stages_keys then
        KeyRows rows;
        if (masked) rows.read(p, at, n);
@ end
@ if problem.paged then
        const PagedRows paged(p, at, n);
@ end
        mbarrier_wait(smem + k_empty + 8 * k.index(), k.parity() ^ 1);
@ if stages_keys then
        if (masked) {
            rows.write(smem + smem_k_rows + k.index() * k_row_bytes);
            __syncwarp();
        }
@ end
        if (elect_lane()) {
@ if not latent then
            const u32 bar = smem + k_full + 8 * k.index();
@ end
            st_shared_u32(smem + k_visit + 4 * k.index(), Visit(n, last, seen).word);
@ if not (problem.paged or latent) then
            mbarrier_arrive_expect_tx(bar, k_bytes);
            $(load_keys)$(layout.d_cols)$(own_d)>(smem + smem_k + k.index() * k_bytes, p.map_k, bar, $(k_row)n * block_n, $(kv_head), $(k_batch));
@ end
        }
@ if problem.paged and not latent then
        paged.load<$(layout.d_cols)$(own_d)>(smem + smem_k + k.index() * k_bytes, p.map_k, smem + k_full + 8 * k.index(), $(kv_head));
@ end
@ if plan.teams > 1 or latent then
        values.send(at, n$(problem.paged and problem.dtype ~= "e4m3" and ", paged" or ""));
@ end
        k.next();
    }

    // Sends word that a tile of queries visits nothing.
    __device__ __forceinline__ void send_none() {
        mbarrier_wait(smem + k_empty + 8 * k.index(), k.parity() ^ 1);
        if (leader) {
            st_shared_u32(smem + k_visit + 4 * k.index(), Visit().word);
            mbarrier_arrive(smem + k_full + 8 * k.index());
        }
        k.next();
@ if latent then
        values.v = k; // whose tiles are the same
@ end
    }

@ if plan.q_stages == 2 then
    // After how many tiles the tile of queries that follows is claimed: late, as what is claimed early may have to wait for a long one.
    __device__ __forceinline__ int late(const Where &at, const TileScan &scan) const {
        const int all = __reduce_add_sync(full_warp, __popc(scan.active));
        return more ? k_stages : max(k_stages, all - k_stages - at.seqlen_k / (32 * block_n));
    }

@ end
@ local asked = asks_groups and "seen_by_groups(p, at, sent, careful)" or "0"
@ local late = plan.q_stages == 2 and "late(at, scan)" or "1"
    // Sends the keys that a tile visits, or only word that there are none. In between, when the first ones have found room, calls
    // `between`, once. `careful`: no tile is taken for whole.
    template <class Between> __device__ __forceinline__ void send_k(const Where &at, bool careful, const Between &between) {
        int to_go = 0;
        TileScan scan;
@ local keeps = #mask.own > 0 and not scanner
@ if keeps then
        scan.own = smem + own_terms;
@ end
@ if scanner then
        int n = -1;
        if (at.b >= 0) {
            n = hear(scan);
            if (n < 0) send_none();
            else to_go = $(late);
        }
        for (; n >= 0; --to_go) {
            if (to_go == 0) between();
            const int sent = n;
            const bool masked = !scan.whole();
            const int seen = masked ? $(asked) : Visit::groups;
            n = next_tile(scan, n);
            if (n < 0 && more) n = hear(scan);
            send_tile(at, sent, n < 0, masked, seen);
        }
        if (to_go >= 0) between();
        if (upcoming != no_more) ask(upcoming);
        upcoming = no_more;
@ else
        more = at.b >= 0;
@   if keeps then
        if (more) keep_own(scan.own, p, at);
@   end
        int n = -1;
        for (bool begins = more; n >= 0 || more;) { // it begins with no tile to send: what looks for tiles is a long text, and stands here once
            const int sent = n;
            if (!begins && to_go-- == 0) between();
            const bool masked = !begins && !scan.whole();
            const int seen = masked ? $(asked) : Visit::groups;
            n = begins ? -1 : next_tile(scan, sent);
            if (n < 0 && more) n = look(scan, at, careful, begins ? 0x7fffffff : scan.first);
            if (!begins) send_tile(at, sent, n < 0, masked, seen);
            else if (n < 0) send_none();
            else to_go = $(late);
            begins = false;
        }
        if (to_go >= 0) between();
@ end
    }
