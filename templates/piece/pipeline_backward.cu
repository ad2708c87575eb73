// Stages of shared memory that a producer fills with tiles of Q and dO and with their row statistics, and the warpgroups of consumers
// empty, in turn. Each has an mbarrier for `full` (one arrival, and the bytes of the copies), one for `empty` (an arrival of
// each warp that reads it), and two words that say what it holds.
@ local ordered, direct, late = plan.ordered, plan.q_stages == 0, plan.k_stages == 3 -- dQ's adds; its product
@ local apart = ordered or plan.q_stages == 2 -- warps that add, or give leave to
constexpr int consumers = $(plan.consumers), stages = $(plan.stages), adders = $(apart and 2 or 0);
constexpr u32 full = smem_bars, empty = full + 8 * stages, k_full = empty + 8 * stages, k_empty = k_full + 8;
constexpr u32 v_full = k_empty + 8, v_empty = v_full + 8, tail_full = v_empty + 8;
constexpr u32 stage_tile = tail_full + 8;            // twice the tile, and one if it carries no mask; then the query head
constexpr u32 key_tile = stage_tile + 8 * stages;    // which tile of keys
@ if apart then
// dQ's buffers, or turns to add, have two barriers each that pass between consumers and adder.
constexpr int dq_buffers = 2;
constexpr u32 dq_full = key_tile + 8, dq_empty = dq_full + 8 * dq_buffers$(direct and ", dq_turn = dq_empty + 8 * dq_buffers" or "");
@ end
@ if late then
// dS's buffers, which each warp writes and reads a part of.
constexpr int ds_buffers = $(plan.k_stages);
constexpr u32 ds_full = key_tile + 8, ds_empty = ds_full + 8 * ds_buffers;
@ end
constexpr int no_more = -1;                          // instead of a tile, of queries or of keys

// Which stage is next, and the parity of the phase of its barriers; in one register.
template <int N> struct Ring {
    u32 place = 0; // counts the stages of two phases
    __device__ __forceinline__ u32 index() const { return place % N; }
    __device__ __forceinline__ u32 parity() const { return place / N; }
    __device__ __forceinline__ void next() { place = place + 1 == 2 * N ? 0 : place + 1; }
};

__device__ __forceinline__ void init_barriers(u32 smem) {
    for (int i = 0; i < stages; ++i) {
        mbarrier_init(smem + full + 8 * i, 1);
        mbarrier_init(smem + empty + 8 * i, 4 * consumers + adders);
    }
    mbarrier_init(smem + k_full, 1);
    mbarrier_init(smem + k_empty, 4 * consumers);
    mbarrier_init(smem + v_full, 1);
    mbarrier_init(smem + v_empty, 4 * consumers + adders);
@ if late then
    for (int i = 0; i < ds_buffers; ++i) {
        mbarrier_init(smem + ds_full + 8 * i, 4 * consumers);
        mbarrier_init(smem + ds_empty + 8 * i, 4 * consumers);
    }
@ end
@ if apart then
    for (int i = 0; i < dq_buffers; ++i) {
        mbarrier_init(smem + dq_full + 8 * i, 4 * consumers);
        mbarrier_init(smem + dq_empty + 8 * i, 1);
@   if direct then
        mbarrier_init(smem + dq_turn + 8 * i, 1);
@   end
    }
@ end
    mbarrier_init(smem + tail_full, 1);
    mbarrier_init_fence();
}

// Rows `row` and on of a head, in panels of 64 columns; outside the tensor there are zeros.
template <int ROWS, int COLS>
__device__ __forceinline__ void load_tile(u32 tile, const TensorMap &map, u32 bar, int row, int head, int batch) {
#pragma unroll
    for (int panel = 0; panel < COLS / 64; ++panel) tma_load_4d(tile + panel * (ROWS * 128), &map, bar, 64 * panel, row, head, batch);
}

@ local tails = problem.packed or problem.seqused_k
@ local batch = problem.packed and "0" or "at.b"
@ if tails then
// What lies past a sequence's end may be NaN, and zero times NaN is NaN: rows from num_rows on become zero.
template <int ROWS, int COLS> __device__ __forceinline__ void clear_rows(u32 tile, int num_rows) {
    for (int i = num_rows * 8 + threadIdx.x % 32; i < ROWS * 8; i += 32)
#pragma unroll
        for (int panel = 0; panel < COLS / 64; ++panel) st_shared_v4(tile + panel * (ROWS * 128) + i * 16, make_uint4(0, 0, 0, 0));
}

@ end
// One warp, which claims tiles of keys, and for each walks over the query tiles of all heads of a group.
struct Producer {
    const Params &p;
    const u32 smem;
    Ring<stages> ring;
    u32 parity = 1; // of the phase in which K and V are free
@ if tails then
    u32 tail_parity = 0;
@ end

    __device__ __forceinline__ Producer(const Params &p_, u32 smem_) : p(p_), smem(smem_) {}
@ if tails then

    // The copies that tail_full counts have landed, and zeros are to be written; then those behind `bar` may read.
    __device__ __forceinline__ void wait_tail() {
        mbarrier_wait(smem + tail_full, tail_parity);
        tail_parity ^= 1;
    }
    __device__ __forceinline__ void pass_tail(u32 bar) {
        fence_proxy_async();
        __syncwarp();
        if (threadIdx.x % 32 == 0) mbarrier_arrive(bar);
    }
@ end

    // K or V of a tile, as soon as the consumers are done with the one before.
    template <int COLS>
    __device__ __forceinline__ void send_keys(u32 tile, const TensorMap &map, u32 is_full, u32 is_empty, const Where &at, int kv_head) {
        mbarrier_wait(smem + is_empty, parity);
@ if tails then
        const int num_rows = at.seqlen_k - at.k_first;
        const u32 bar = smem + (num_rows < block_n ? tail_full : is_full);
@ else
        const u32 bar = smem + is_full;
@ end
        if (elect_lane()) {
            mbarrier_arrive_expect_tx(bar, block_n * COLS * 2);
            load_tile<block_n, COLS>(tile, map, bar, $(problem.packed and "at.k_offset + " or "")at.k_first, kv_head, $(batch));
        }
@ if tails then
        if (num_rows >= block_n) return;
        wait_tail();
        clear_rows<block_n, COLS>(tile, max(num_rows, 0));
        pass_tail(smem + is_full);
@ end
    }

    __device__ __forceinline__ void send_tile(const Where &at, int n, bool whole) {
        const u32 i = ring.index(), tile = smem + smem_q + i * stage_bytes, rows = smem + smem_rows + i * (block_m * 8);
        mbarrier_wait(smem + empty + 8 * i, ring.parity() ^ 1);
@ if problem.packed then
        const int num_rows = at.seqlen_q - n * block_m;
        const u32 bar = smem + (num_rows < block_m ? tail_full : full + 8 * i);
@ else
        const u32 bar = smem + full + 8 * i;
@ end
        if (elect_lane()) {
            const int row = $(problem.packed and "at.q_offset + " or "")n * block_m;
            const i64 statistics = padded_start(p, at, at.h) + n * block_m;
            st_shared_u32(smem + stage_tile + 8 * i, 2 * n + whole);
            st_shared_u32(smem + stage_tile + 8 * i + 4, at.h);
            mbarrier_arrive_expect_tx(bar, stage_bytes + block_m * 8);
            load_tile<block_m, $(layout.d_cols)>(tile, p.map_q, bar, row, at.h, $(batch));
            bulk_load(rows, p.lse_log2 + statistics, block_m * 4, bar);
            load_tile<block_m, $(layout.dv_cols)>(tile + q_bytes, p.map_dout, bar, row, at.h, $(batch));
            bulk_load(rows + block_m * 4, p.delta + statistics, block_m * 4, bar);
        }
@ if problem.packed then
        if (num_rows < block_m) {
            wait_tail();
            clear_rows<block_m, $(layout.d_cols)>(tile, num_rows);
            clear_rows<block_m, $(layout.dv_cols)>(tile + q_bytes, num_rows);
            pass_tail(smem + full + 8 * i);
        }
@ end
        ring.next();
    }

    // Sends instead of a tile of queries that there is none for these keys.
    __device__ __forceinline__ void send_end() {
        mbarrier_wait(smem + empty + 8 * ring.index(), ring.parity() ^ 1);
        if (threadIdx.x % 32 == 0) {
            st_shared_u32(smem + stage_tile + 8 * ring.index(), u32(no_more));
            mbarrier_arrive(smem + full + 8 * ring.index());
        }
        ring.next();
    }

@ if ordered then
    __device__ __forceinline__ int claim() {
        int index;
        if (threadIdx.x % 32 == 0) index = claim_tile(p);
        return __shfl_sync(full_warp, index, 0);
    }

@ end
    __device__ __forceinline__ void run() {
        if (elect_lane()) {
            tma_prefetch_map(&p.map_q);
            tma_prefetch_map(&p.map_k);
            tma_prefetch_map(&p.map_v);
            tma_prefetch_map(&p.map_dout);
        }
@ if ordered then
        // A tile claimed ahead of its need would keep those behind it waiting.
        for (int index = claim(); index < p.num_tiles; index = claim()) {
@ else
        for (int index = blockIdx.x, next; index < p.num_tiles; index = __shfl_sync(full_warp, next, 0)) {
            if (threadIdx.x % 32 == 0) next = claim_tile(p); // arrives while copies are issued
@ end
            int kv_head;
            Where at = tile_at(p, index, kv_head);
            if (at.b < 0) continue;
            // V is free before K is, and of what comes then K and the first queries are needed first.
            send_keys<$(layout.dv_cols)>(smem + smem_v, p.map_v, v_full, v_empty, at, kv_head);
            if (elect_lane()) st_shared_u32(smem + key_tile, index); // the lane that announces the bytes
            send_keys<$(layout.d_cols)>(smem + smem_k, p.map_k, k_full, k_empty, at, kv_head);
            parity ^= 1;
            for (int head = 0; head < p.heads_per_kv; ++head, ++at.h)
                for (TileWalk walk(p, at); walk.n >= 0; walk.next(p, at)) send_tile(at, walk.n, walk.whole());
            send_end();
        }
        mbarrier_wait(smem + v_empty, parity);
        mbarrier_wait(smem + k_empty, parity);
        if (threadIdx.x % 32 == 0) {
            st_shared_u32(smem + key_tile, u32(no_more));
            mbarrier_arrive(smem + k_full);
        }
    }
};
