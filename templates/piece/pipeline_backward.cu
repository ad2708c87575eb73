// Stages of shared memory that a producer fills with tiles of Q and dO and with their row statistics, and the warpgroups of consumers
// empty, in turn. Each has an mbarrier for `full` (one arrival, and the bytes of the copies), one for `empty` (an arrival of
// each warp that reads it), and two words that say what it holds.
@ local adders, direct, late = plan.adders, plan.q_stages == 0, plan.turns or plan.k_stages == 3 -- dQ's adds; its product
@ local waits = adders and problem.deterministic -- tiles wait for those before them
@ local cluster, halved = plan.cluster > 1, plan.halved
@ local pair, splits, heads = cluster and not halved, mask.leading_rows > 0, plan.head_rows > 0
@ local starts = cluster and ", int col = 0" or "" -- a CTA's columns need not begin with the tensor's
@ local leads = mask.leading > 0 and (not problem.packed or mask.all_lead) and (splits or not waits) and not heads
@ local kv = layout.kv_buffers -- of K and V
constexpr int consumers = $(plan.consumers), stages = $(plan.stages), adders = $(adders and 2 or 0); // warps that add, or give leave to
constexpr u32 full = smem_bars, empty = full + 8 * stages, k_full = empty + 8 * stages, k_empty = k_full + 8;
constexpr u32 v_full = k_empty + 8, v_empty = v_full + 8, key_tile = v_empty + 8; // which tile of keys
@ if splits then
constexpr u32 key_split = key_tile + 4;              // which part of the queries; stays until K is given back
@ end
@ if kv > 1 then
constexpr u32 kv_bytes = $(layout.kv_bytes), kv_bars = 8 * 5; // from one buffer of K and V to the other, and from its barriers and word
@ end
constexpr u32 tail_full = k_full + $(kv > 1 and kv .. " * kv_bars" or "8 * 5");
constexpr u32 stage_tile = tail_full + $(kv > 1 and "8 * 3" or "8");            // four times the tile, plus is_whole, is_last; then the query head
constexpr u32 tiles_end = stage_tile + 8 * stages;
@ if adders then
// dQ's buffers, or turns to add, have two barriers each that pass between consumers and adder.
constexpr int dq_buffers = 2;
constexpr u32 dq_full = tiles_end, dq_empty = dq_full + 8 * dq_buffers$(direct and ", dq_turn = dq_empty + 8 * dq_buffers" or "");
@ end
@ if late then
// dS's buffers, which each warp writes and reads a part of.
constexpr int ds_buffers = $(plan.k_stages);
constexpr u32 ds_full = $(adders and (direct and "dq_turn" or "dq_empty") .. " + 8 * dq_buffers" or "tiles_end"), ds_empty = ds_full + 8 * ds_buffers;
@ end
@ if heads then
// Warps that compute the rows' statistics of a head, while the one before is at hand; and where they have them.
constexpr int row_warps = $(staged.grad and 2 or 3);
constexpr u32 rows_full = $(late and "ds_empty + 8 * ds_buffers" or "tiles_end"), rows_empty = rows_full + 8;
@ end
@ if pair then
// The other CTA's K, dO, and dS of the other CTA's keys; tails of each stage's Q, and of dO; which tile of keys comes next.
constexpr int ds_buffers = $(plan.k_stages);
constexpr u32 other_full = $(adders and "dq_turn + 8 * dq_buffers" or "tiles_end"), dout_full = other_full + 8, dout_empty = dout_full + 8, ds_full = dout_empty + 8;
constexpr u32 tile_tail = ds_full + 8 * ds_buffers, dout_tail = tile_tail + 8 * stages;
constexpr u32 claim_full = dout_tail + 8, claim_empty = claim_full + 8, claim_slot = claim_empty + 8;
@ end
@ if halved then
// P and dS are there, of both CTAs' queries, and have been read; each warp's sums from the other CTA, of scores and of dP; which tile of keys comes next.
constexpr u32 shared_full = $(adders and "dq_turn + 8 * dq_buffers" or "tiles_end"), shared_empty = shared_full + 8, sums_full = shared_empty + 8;
constexpr u32 claim_full = sums_full + 8 * 2 * 4 * consumers, claim_empty = claim_full + 8, claim_slot = claim_empty + 8;
@ end
@ if staged.array then
// A tile of $(staged.array.name) for 64 queries. What the producer cannot copy, consumers read themselves.
constexpr u32 smem_array = $(layout.array), gradient_place = $(layout.array_bars);
constexpr u32 array_full = gradient_place + 16, array_empty = array_full + 8, gradient_full = array_empty + 8;
@ end
constexpr int is_whole = 1, is_last = 2;             // a tile carries no mask; none follows for these keys
constexpr int no_more = -1;                          // instead of a tile, of queries or of keys; as a word it is the last

// Which stage is next, and the parity of the phase of its barriers; in one register.
template <int N> struct Ring {
    u32 place = 0; // counts the stages of two phases
    __device__ __forceinline__ u32 index() const { return place % N; }
    __device__ __forceinline__ u32 parity() const { return place / N; }
    __device__ __forceinline__ void next() { place = place + 1 == 2 * N ? 0 : place + 1; }
};

__device__ __forceinline__ void init_barriers($(staged.array and "const Params &p, " or "")u32 smem) {
    for (int i = 0; i < stages; ++i) {
        mbarrier_init(smem + full + 8 * i, 1);
        mbarrier_init(smem + empty + 8 * i, $(pair and plan.cluster .. " * " or "")4 * consumers + adders);
    }
@ if kv > 1 then
    for (u32 keys = smem; keys < smem + $(kv) * kv_bars; keys += kv_bars) {
@ end
@ local keys, indent = kv > 1 and "keys" or "smem", kv > 1 and "    " or ""
    $(indent)mbarrier_init($(keys) + k_full, 1);
    $(indent)mbarrier_init($(keys) + k_empty, 4 * consumers);
    $(indent)mbarrier_init($(keys) + v_full, 1);
    $(indent)mbarrier_init($(keys) + v_empty, 4 * consumers + adders);
@ if kv > 1 then
    }
@ end
@ if pair then
    mbarrier_init(smem + other_full, 1);
    mbarrier_init(smem + dout_full, 1);
    mbarrier_init(smem + dout_empty, $(plan.cluster) * 4 * consumers);
    for (int i = 0; i < ds_buffers; ++i) mbarrier_init(smem + ds_full + 8 * i, 1);
    for (int i = 0; i < stages; ++i) mbarrier_init(smem + tile_tail + 8 * i, 1);
    mbarrier_init(smem + dout_tail, 1);
@ end
@ if halved then
    mbarrier_init(smem + shared_full, 4 * consumers);
    mbarrier_init(smem + shared_empty, $(plan.cluster) * 4 * consumers);
    for (int i = 0; i < 2 * 4 * consumers; ++i) mbarrier_init(smem + sums_full + 8 * i, 1);
@ end
@ if cluster then
    mbarrier_init(smem + claim_full, 1);
    mbarrier_init(smem + claim_empty, 1);
@ end
@ if late then
    for (int i = 0; i < ds_buffers; ++i) {
        mbarrier_init(smem + ds_full + 8 * i, 4 * consumers);
        mbarrier_init(smem + ds_empty + 8 * i, 4 * consumers);
    }
@ end
@ if adders then
    for (int i = 0; i < dq_buffers; ++i) {
        mbarrier_init(smem + dq_full + 8 * i, 4 * consumers);
        mbarrier_init(smem + dq_empty + 8 * i, 1);
@   if direct then
        mbarrier_init(smem + dq_turn + 8 * i, 1);
@   end
    }
@ end
@ if heads then
    mbarrier_init(smem + rows_full, row_warps);
    mbarrier_init(smem + rows_empty, 1);
@ end
@ if staged.array then
    mbarrier_init(smem + array_full, 1);
    mbarrier_init(smem + array_empty, $(staged.grad and "p.array_grad[" .. staged.slot .. "].boxed ? 1 : " or "")4 * consumers);
    mbarrier_init(smem + gradient_full, 4 * consumers);
@ end
@ if kv > 1 then
    for (int i = 0; i < 3; ++i) mbarrier_init(smem + tail_full + 8 * i, 1);
@ else
    mbarrier_init(smem + tail_full, 1);
@ end
    mbarrier_init_fence();
}

// Rows `row` and on of a head, in panels of 64 columns$(cluster and " from `col` on" or ""); outside the tensor there are zeros.
template <int ROWS, int COLS>
__device__ __forceinline__ void load_tile(u32 tile, const TensorMap &map, u32 bar, int row, int head, int batch$(starts)) {
#pragma unroll
    for (int panel = 0; panel < COLS / 64; ++panel) tma_load_4d(tile + panel * (ROWS * 128), &map, bar, 64 * panel$(cluster and " + col" or ""), row, head, batch);
}
@ if pair then

// The same for both CTAs of the cluster, of which each loads half of the panels.
template <int ROWS, int COLS>
__device__ __forceinline__ void load_shared_tile(u32 tile, const TensorMap &map, u32 bar, int row, int head, int batch) {
#pragma unroll
    for (int i = 0; i < COLS / 128; ++i) {
        const int panel = cluster_rank() * (COLS / 128) + i;
        tma_multicast_4d(tile + panel * (ROWS * 128), &map, bar, 64 * panel, row, head, batch, 3);
    }
}

// Of a cluster's tile of keys those of CTA `rank`.
__device__ __forceinline__ Where keys_of(Where at, u32 rank) {
    at.k_first += rank * own_n;
    at.k_last = min(at.k_first + own_n, at.seqlen_k) - 1;
    return at;
}
@ end

@ local tails = problem.packed or problem.seqused_k
@ local batch = problem.packed and "0" or "at.b"
@ if tails then
// What lies past a sequence's end may be NaN, and zero times NaN is NaN: rows from num_rows on become zero.
template <int ROWS, int COLS> __device__ __forceinline__ void clear_rows(u32 tile, int num_rows) {
@   if halved then
#pragma unroll 1 // of 24 registers
@   end
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
@ if kv > 1 then
    Ring<$(kv)> keys; // the buffer of K and V that comes next
@ else
    u32 parity = 1; // of the phase in which K and V are free
@ end
@ if heads then
    u32 rows_parity = 0;
@ end
@ if staged.array then
    u32 array_parity = 1;
@ end
@ if tails then
    u32 tail_parity = 0$(pair and "; // a bit for each barrier: of keys, of dO, of the stages" or kv > 1 and "; // a bit for each barrier: of V, of K, of a stage" or ";")
@   if kv > 1 then
    bool keys_come = false; // whose rows behind the end are still to be cleared
@   end
@ end
@ if cluster then
    const u32 rank = cluster_rank();
    u32 $(pair and "dout_parity = 1, " or "")claim_parity = 0;
@ end

    __device__ __forceinline__ Producer(const Params &p_, u32 smem_) : p(p_), smem(smem_) {}
@ if tails then

@   if pair then
    // The copies that `tail` counts have landed, and zeros are to be written; then those behind `bar` may read.
    __device__ __forceinline__ void wait_tail(u32 tail = tail_full, u32 bit = 0) {
        mbarrier_wait(smem + tail, tail_parity >> bit & 1);
        tail_parity ^= 1u << bit;
    }
@   elseif kv > 1 then
    // The same for copies that are on their way together.
    __device__ __forceinline__ void wait_tail(u32 bit) {
        mbarrier_wait(smem + tail_full + 8 * bit, tail_parity >> bit & 1);
        tail_parity ^= 1u << bit;
    }
@   else
    // The copies that tail_full counts have landed, and zeros are to be written; then those behind `bar` may read.
    __device__ __forceinline__ void wait_tail() {
        mbarrier_wait(smem + tail_full, tail_parity);
        tail_parity ^= 1;
    }
@   end
    __device__ __forceinline__ void pass_tail(u32 bar) {
        fence_proxy_async();
        __syncwarp();
        if (threadIdx.x % 32 == 0) mbarrier_arrive(bar);
    }
@ end

    // K or V of a tile$(tails and kv > 1 and "; `bit`: which of the copies whose rows are to be cleared" or "").
    template <int COLS>
    __device__ __forceinline__ void load_keys(u32 tile, const TensorMap &map, u32 is_full, const Where &at, int kv_head$(cluster and starts or tails and kv > 1 and ", u32 bit" or "")) {
@ if tails then
        const int num_rows = at.seqlen_k - at.k_first;
        const u32 bar = smem + (num_rows < own_n ? tail_full$(kv > 1 and " + 8 * bit" or "") : is_full);
@ else
        const u32 bar = smem + is_full;
@ end
        if (elect_lane()) {
            mbarrier_arrive_expect_tx(bar, own_n * COLS * 2);
            load_tile<own_n, COLS>(tile, map, bar, $(problem.packed and "at.k_offset + " or "")at.k_first, kv_head, $(batch)$(cluster and ", col" or ""));
        }
@ if tails then
@   if kv > 1 then
    }
    // Zeros behind the end of the keys.
    template <int COLS> __device__ __forceinline__ void clear_keys(u32 tile, u32 is_full, const Where &at, u32 bit) {
        const int num_rows = at.seqlen_k - at.k_first;
        if (num_rows >= own_n) return;
        wait_tail(bit);
@   else
        if (num_rows >= own_n) return;
        wait_tail();
@   end
        clear_rows<own_n, COLS>(tile, max(num_rows, 0));
        pass_tail(smem + is_full);
@ end
    }
@ if tails and kv > 1 then
    // Once the first tile of queries is on its way, too.
    __device__ __forceinline__ void finish_keys(const Where &at) {
        if (!keys_come) return;
        const u32 bars = keys.index() * kv_bars, tiles = smem + keys.index() * kv_bytes;
        clear_keys<$(layout.dv_cols)>(tiles + smem_v, bars + v_full, at, 0);
        clear_keys<$(layout.d_cols)>(tiles + smem_k, bars + k_full, at, 1);
        keys.next();
        keys_come = false;
    }
@ end

    // K and V of a tile, each as soon as the consumers are done with the one before: with V that is once the last dP is there.
    __device__ __forceinline__ void send_keys(const Where &at, int kv_head, int index) {
@ if pair then
        const Where own = keys_of(at, rank), other = keys_of(at, rank ^ 1);
@ end
@ local own = pair and "own" or "at"
@ if kv > 1 then
        const u32 bars = keys.index() * kv_bars, tiles = smem + keys.index() * kv_bytes, parity = keys.parity() ^ 1;
@ end
@ local bars, tiles = kv > 1 and "bars + " or "", kv > 1 and "tiles" or "smem"
        mbarrier_wait(smem + $(bars)v_empty, parity);
        if (elect_lane()) st_shared_u32(smem + $(bars)key_tile, index); // the lane that announces the bytes
        load_keys<$(layout.dv_cols)>($(tiles) + smem_v, p.map_v, $(bars)v_full, $(own), kv_head$(halved and ", rank * own_dv" or tails and kv > 1 and ", 0" or ""));
        mbarrier_wait(smem + $(bars)k_empty, parity);
@ if splits then
        if (elect_lane()) st_shared_u32(smem + key_split, u32(at.split));
@ end
        load_keys<$(layout.d_cols)>($(tiles) + smem_k, p.map_k, $(bars)k_full, $(own), kv_head$(halved and ", rank * own_d" or tails and kv > 1 and ", 1" or ""));
@ if pair then
        load_keys<$(layout.d_cols // 2)>(smem + smem_other_k, p.map_k, other_full, other, kv_head, rank * $(layout.d_cols // 2));
@ end
        $(kv == 1 and "parity ^= 1" or tails and "keys_come = true" or "keys.next()");
    }

    // The next stage, as soon as the consumers are done with it.
    __device__ __forceinline__ u32 free_stage() const {
        mbarrier_wait(smem + empty + 8 * ring.index(), ring.parity() ^ 1);
        return ring.index();
    }

@ if pair then
@ include("piece/send_pair.cu", { batch = batch })
@ else
    __device__ __forceinline__ void send_tile(const Where &at, int word) {
        const int n = word >> 2;
        const u32 i = free_stage(), tile = smem + smem_q + i * stage_bytes, rows = smem + smem_rows + i * (block_m * 8);
@ if problem.packed then
        const int num_rows = at.seqlen_q - n * block_m;
        const u32 bar = smem + (num_rows < block_m ? tail_full$(kv > 1 and " + 8 * 2" or "") : full + 8 * i);
@ else
        const u32 bar = smem + full + 8 * i;
@ end
        if (elect_lane()) {
            const int row = $(problem.packed and "at.q_offset + " or "")n * block_m;
            const i64 statistics = padded_start(p, at, at.h) + n * block_m;
            st_shared_u32(smem + stage_tile + 8 * i, word);
            st_shared_u32(smem + stage_tile + 8 * i + 4, at.h);
            mbarrier_arrive_expect_tx(bar, stage_bytes + block_m * 8);
            load_tile<block_m, $(layout.d_cols)>(tile, p.map_q, bar, row, at.h, $(batch)$(halved and ", rank * own_d" or ""));
            bulk_load(rows, p.lse_log2 + statistics, block_m * 4, bar);
            load_tile<block_m, $(layout.dv_cols)>(tile + q_bytes, p.map_dout, bar, row, at.h, $(batch)$(halved and ", rank * own_dv" or ""));
            bulk_load(rows + block_m * 4, p.delta + statistics, block_m * 4, bar);
        }
@ if tails and kv > 1 then
        finish_keys(at);
@ end
@ if problem.packed then
        if (num_rows < block_m) {
            wait_tail($(kv > 1 and "2" or ""));
            clear_rows<block_m, $(layout.d_cols)>(tile, num_rows);
            clear_rows<block_m, $(layout.dv_cols)>(tile + q_bytes, num_rows);
            pass_tail(smem + full + 8 * i);
        }
@ end
        ring.next();
@ if staged.array then
        mbarrier_wait(smem + array_empty, array_parity);
        array_parity ^= 1;
        if (elect_lane()) {
            const u32 is_full = smem + array_full;
            if (p.array[$(staged.slot)].boxed) {
                mbarrier_arrive_expect_tx(is_full, array_panels * 8192);
#pragma unroll
                for (int panel = 0; panel < array_panels; ++panel)
                    tma_load_4d(smem + smem_array + panel * array_panel, &p.map_array, is_full, at.k_first + $(128 // staged.array.bytes) * panel, n * block_m, $(staged.entry("array", "h")), $(staged.entry("array", "b")));
            } else {
                mbarrier_arrive(is_full);
            }
        }
@ end
    }
@ end
@ if cluster then

@   include("piece/next_tile.cu")
@ end

@ if heads then
    // The statistics of the head's rows are there, of a CTA's first head from the start; the next one's may be computed.
    __device__ __forceinline__ void begin_head(int round) {
        if (round > 0) {
            mbarrier_wait(smem + rows_full, rows_parity);
            rows_parity ^= 1;
            fence_proxy_async_global();
        }
        if (elect_lane()) mbarrier_arrive(smem + rows_empty);
    }

@ end
    // Sends instead of a tile of queries that these keys have none.
    __device__ __forceinline__ void send_end($(tails and kv > 1 and "const Where &at" or "")) {
@ if tails and kv > 1 then
        finish_keys(at);
@ end
        const u32 i = free_stage();
        if (threadIdx.x % 32 == 0) {
            st_shared_u32(smem + stage_tile + 8 * i, u32(no_more));
            mbarrier_arrive(smem + full + 8 * i);
        }
        ring.next();
    }

    // The tile at hand, once it is known whether it is the last.
    __device__ __forceinline__ void send_next(RowWalk &walk, Where &at) {
        const Where of_tile = at;
        const int word = 4 * walk.n + (walk.whole() ? is_whole : 0);
        walk.next(p, at);
        send_tile(of_tile, walk.n < 0 ? word + is_last : word);
    }

@ if not heads then
    // The next tile, as late as can be: who claims one while its own has still a long way to go, as over the queries of a group, keeps it from
    // all others, and these wait in the end. The claim arrives while the last tiles of queries are computed.
    __device__ __forceinline__ int claim() {
@   if waits then
        free_stage(); // a tile claimed ahead of its need would keep those behind it waiting
@   end
@   if cluster then
        int index = 0;
        if (rank == 0 && threadIdx.x % 32 == 0) index = claim_tile(p);
        return next_tile(index);
@   else
        int index;
        if (threadIdx.x % 32 == 0) index = claim_tile(p);
        return __shfl_sync(full_warp, index, 0);
@   end
    }

@ end
    __device__ __forceinline__ void run() {
        if (elect_lane()) {
            tma_prefetch_map(&p.map_q);
            tma_prefetch_map(&p.map_k);
            tma_prefetch_map(&p.map_v);
            tma_prefetch_map(&p.map_dout);
        }
@ if heads then
        for (HeadTiles tiles; tiles.index(p) < p.num_tiles;) {
@ else
        for (int claimed = $(waits and "claim()" or cluster and "blockIdx.x / " .. plan.cluster or "blockIdx.x"); claimed < p.num_tiles; claimed = claim()) {
@ end
@ if splits then
            int split;
@ end
            const int index = $(splits and "in_turn(p, claimed, split)" or leads and "in_turn(p, claimed)" or heads and "tiles.index(p)" or "claimed");
            int kv_head;
            Where at = tile_at(p, index, kv_head);
@ if splits then
            at.split = split;
@ end
@ if heads then
            const int round = tiles.place == 0 ? tiles.round : -1; // that begins
            tiles.next(p, at);
@ else
            if (at.b < 0) continue;
@ end
            RowWalk walk(p, at); // while the consumers still compute
@ if pair or kv > 1 then
            send_keys(at, kv_head, index); // $(pair and "dO's buffer is free no sooner than K is" or "whose buffer has been free since the tile before")
@ end
@ if heads then
            if (round >= 0) begin_head(round);
@ end
@ if pair or kv > 1 then
            if (walk.n < 0) send_end($(tails and kv > 1 and "at" or ""));
            while (walk.n >= 0) send_next(walk, at);
@ else
            // A stage is free before V is, and V before K: the first tile comes while the last one before is computed.
            if (walk.n < 0) send_end($(tails and kv > 1 and "at" or ""));
            for (bool first = true; first || walk.n >= 0; first = false) {
                if (walk.n >= 0) send_next(walk, at);
                if (first) send_keys(at, kv_head, index);
            }
@ end
        }
@ if kv > 1 then
        const u32 last = smem + keys.index() * kv_bars, parity = keys.parity() ^ 1;
@ end
@ local last = kv > 1 and "last" or "smem"
        mbarrier_wait($(last) + v_empty, parity);
        if (threadIdx.x % 32 == 0) {
            st_shared_u32($(last) + key_tile, u32(no_more));
            mbarrier_arrive($(last) + v_full);
        }
    }
};
