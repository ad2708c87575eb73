@ local paged = problem.paged and not e4m3 -- whose values are in rows by now
@ local tails = (problem.packed or problem.seqused_k or paged) and not e4m3
@ local cols, own, map = layout.dv_cols, own_dv, "p.map_v"
@ if latent then cols, own, map = layout.d_cols, own_d, "p.map_k" end -- the values are the first columns of what comes
struct Values {
    const Params &p;
    const u32 smem;
    Ring<v_stages> v;
@ if tails then
    u32 tail_parity = 0;
@ end
@ if trusts then
    bool clean = false; // the tile is computed once more
@ end

    __device__ __forceinline__ Values(const Params &p_, u32 smem_) : p(p_), smem(smem_) {}

    // Starts the copy of tile n of the values, whose bytes `bar` counts.
    __device__ __forceinline__ void load(u32 tile, u32 bar, const Where &at, int n$(paged and ", const PagedRows &rows" or "")) {
@ if paged then
        rows.load<$(cols)$(own)>(tile, $(map), bar, $(kv_head));
@ else
        if (elect_lane()) {
            mbarrier_arrive_expect_tx(bar, v_bytes);
@   if e4m3 then
            tma_load_4d(tile, &p.map_v, bar, 0, 0, value_tile(at) + $(plan.parts and "at.first_tile + " or "")n, $(problem.packed and "" or "at.b * p.num_heads_kv + ")$(kv_head));
@   else
            $(shares and "load_shared_tile<block_n, " .. layout.dv_cols .. ", 1>" or load_keys .. cols .. own .. ">")(tile, $(map), bar, $(k_row)tile_key(at, n), $(kv_head), $(batch));
@   end
        }
@ end
    }

@ local rows = paged and ", rows" or ""
@ if tails then
    // Of a tile that reaches past its sequence: what lies there may be NaN, and zero times NaN is NaN.
@   if trusts then
    // As it is another sequence's it seldom is, and to wait for the copy would keep back what follows: so a tile is sent as it is, and once
    // more, without what is not its own, if its output is not finite.
@   end
    __device__ __forceinline__ void finish_tail(u32 tile, u32 bar, const Where &at, int n) {
        mbarrier_wait(smem + tail_full, tail_parity);
        tail_parity ^= 1;
        for (int i = (at.seqlen_k - own_key(at, n)) * 8 + threadIdx.x % 32; i < block_n * 8; i += 32)
#pragma unroll
            for (int panel = 0; panel < $(layout.dv_cols // 64); ++panel)
                st_shared_v4(tile + panel * (block_n * 128) + $(plan.halved and "(i * 16 + cluster_rank() * (half_n * 128)) % (block_n * 128)" or "i * 16"), make_uint4(0, 0, 0, 0));
        fence_proxy_async();
        __syncwarp();
        if (threadIdx.x % 32 == 0) mbarrier_arrive(bar);
    }

@ end
    // Sends tile n of the values when there is room.
    __device__ __forceinline__ void send(const Where &at, int n$(paged and ", const PagedRows &rows" or "")) {
        const u32 tile = smem + smem_v + v.index() * v_bytes, bar = smem + v_full + 8 * v.index();
        mbarrier_wait(smem + v_empty + 8 * v.index(), v.parity() ^ 1);
@ if tails then
        const bool tail = $(trusts and "clean && " or "")at.seqlen_k - own_key(at, n) < block_n;
        load(tile, tail ? smem + tail_full : bar, at, n$(rows));
        if (tail) finish_tail(tile, bar, at, n);
@ else
        load(tile, bar, at, n);
@ end
        v.next();
    }
};

@ if not (lone or latent) or staged.array then
@   -- A producer that follows the tiles which another one claims.
@   local function follower(name, base)
struct $(name) : $(base) {
@     if mask.residual then
    Ring<k_stages> k;
@     end

    __device__ __forceinline__ $(name)(const Params &p_, u32 smem_) : $(base)(p_, smem_) {}

@     if mask.residual then
    // The tile whose keys come next.
    __device__ __forceinline__ Visit follow() {
        mbarrier_wait(smem + k_full + 8 * k.index(), k.parity());
        const Visit next = visit(smem, k);
        if (threadIdx.x % 32 == 0) mbarrier_arrive(smem + k_empty + 8 * k.index());
        k.next();
        return next;
    }

@     end
    __device__ __forceinline__ void send_all(const Where &at$(mask.runs and ", TileWalk walk" or "")) {
@     if mask.residual then
        for (Visit walk = follow(); walk.n >= 0; walk = walk.last() ? Visit() : follow()) {
@     else
        for ($(mask.runs and "" or "TileWalk walk(p, at)"); walk.n >= 0; walk.next(p, at)) {
@     end
            send(at, walk.n$(base == "Values" and paged and ", PagedRows(p, at, walk.n)" or ""));
        }
    }

    // Follows the tiles that the other producer claims.
    __device__ __forceinline__ void run() {
        for (Ring<q_stages> q;; q.next()) {
            mbarrier_wait(smem + q_full + 8 * q.index(), q.parity());
            const int word = claim(smem, q);
            Where at;
            at.b = -1;
            if (word >= 0 || is_redo(word)) at = claimed(p, smem, q);
@     if trusts and base == "Values" then
            clean = is_redo(word);
@     end
@     if mask.runs then
            const TileWalk walk = written_walk(tile_place(smem, q));
@     end
            if (threadIdx.x % 32 == 0) mbarrier_arrive(smem + q_empty + 8 * q.index());
            if (word == no_more) return;
            if (at.b >= 0) send_all(at$(mask.runs and ", walk" or ""));
        }
    }
};

@   end
@   if not latent then
@     follower("ValueProducer", "Values")
@   end
@   if staged.array then
@     follower("ArrayProducer", "ArrayTiles")
@   end
@ end
