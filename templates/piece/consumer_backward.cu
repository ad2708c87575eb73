@ -- P is on its way to dV before dS is there, unless dropout or the way back changes it.
@ local early = plan.overlap == 2 and not fused and not problem.dropout
@ -- dQ is multiplied a tile later, so that no warpgroup waits for the other's dS, nor do both compute weights at once.
@ local late = plan.turns or plan.k_stages == 3
@ local heads = plan.head_rows > 0
@ local kv = layout.kv_buffers -- of K and V
@ local keys, key_tiles = kv > 1 and "key_bars" or "smem", kv > 1 and "key_tiles" or "smem" -- where their barriers and they begin
@ -- dQ goes to its sum straight from registers, half of it behind the exponentials: the adds' queue is short.
@ local halved = plan.q_stages == 0 and not heads
@ -- dQ lies in shared memory until an adder has added it. To tell the adder takes a wait for the stores, in front of which dP's product is
@ -- issued: 3 to 8 % less.
@ local staged_dq = adders and not halved
@ local narrow = layout.dv_cols <= layout.d_cols and "dv" or "dk"
@ local function through(name) return name == narrow and "smem + smem_q + (used - empty) / 8 * stage_bytes" or "smem + smem_ds" end
@ -- Where dK and dV go is worked out at a row's end where the loop has no registers to keep it. (Elsewhere this only moves spills.)
@ local anew = layout.parts > 1 and (problem.packed or problem.dropout)
@ local by_rows = plan.block_m == 64 * plan.consumers -- whether warpgroups share dQ's rows, and not its columns
struct Consumer {
    const Params &p;
    const u32 smem;
    const int warp, group; // which of the consumers' warps and warpgroups
    $(staged.array and "ArrayTile array;\n    " or "")Ring<stages> ring;     // the tile at hand
@ if kv > 1 then
    u32 key_bars, key_tiles; // of the keys at hand
@ end
    u32 held = 0; // the barrier of the stage through which a gradient leaves: its keys' last
@ if adders then
    Ring<dq_buffers> dq_ring;
@ end
@ if late then
    Ring<ds_buffers> write, read; // of dS
@ end
@ if pair then
    const u32 rank = cluster_rank();
    Ring<ds_buffers> exchange; // of dS: the tile at hand once that before has been multiplied
    u32 dout_parity = 0;
@ end

    __device__ __forceinline__ Consumer(const Params &p_, u32 smem_, int warp_) : p(p_), smem(smem_), warp(warp_), group(warp_ / 4)$(staged.array and ", array(p_, smem_)" or "") {}

@ include("piece/backward_stages.cu", { pair = pair })

@ if shared == 1 then
    __device__ __forceinline__ u32 own_keys(u32 tile) const { return tile + group * (64 * 128); }
    __device__ __forceinline__ u32 own_queries(u32 tile) const { return tile; }
@ else
    __device__ __forceinline__ u32 own_keys(u32 tile) const { return tile; }
    __device__ __forceinline__ u32 own_queries(u32 tile) const { return tile + group * $(layout.score_cols * 128); }
@ end
    // The scores of one part, which are the accumulator of a warp's 16 keys.
    template <int PARTS> static __device__ __forceinline__ float (&scores_of(float (&x)[PARTS][q_atoms][4], int part))[1][q_atoms][4] {
        return reinterpret_cast<float(&)[1][q_atoms][4]>(x[part]);
    }

    // dQ = dS K, the warpgroup's rows or columns.
    __device__ __forceinline__ void multiply_dq(float (&dq)[1][dq_atoms][4], u32 tile_ds) const {
@ if by_rows then
        gemm_dq(dq, tile_ds + group * (own_n * 128), $(key_tiles) + smem_k);
@ else
        gemm_dq(dq, tile_ds, own_columns<own_n, $(layout.dq_cols)>($(key_tiles) + smem_k$(pair and " + rank * (k_bytes / 2)" or "")));
@ end
    }
@ if pair then

    // dS of the tile at hand to the other CTA.
    __device__ __forceinline__ void send_ds() {
        if (warp > 0 || !elect_lane()) return;
        const u32 bar = smem + ds_full + 8 * exchange.index();
        mbarrier_arrive_expect_tx(bar, ds_bytes);
        cluster_copy(cluster_map(smem + smem_other_ds + exchange.index() * ds_bytes, rank ^ 1),
                     smem + smem_ds + exchange.index() * share_bytes, ds_bytes, cluster_map(bar, rank ^ 1));
    }
@ end

@ if heads then
@   include("piece/sum_dq.cu", { by_rows = by_rows })
@ else
@   include("piece/add_dq.cu", { adders = adders, staged_dq = staged_dq, halved = halved, by_rows = by_rows, pair = pair })
@ end

@ if plan.turns then
    // Half of each visit, from the products of scores to the first part's gradients, is one warpgroup's at a time: else nothing holds
    // them half a visit apart, where the products of one run beside the exponentials of the other.
    __device__ __forceinline__ void wait_turn() const { named_barrier_sync(6 + group, 128 * consumers); }
    __device__ __forceinline__ void pass_turn() const { named_barrier_arrive(6 + (group ^ 1), 128 * consumers); }

@ end
@ if late then
    // This warp has read a buffer of dS, or its dQ has.
    __device__ __forceinline__ void free_ds() {
        if (threadIdx.x % 32 == 0) mbarrier_arrive(smem + ds_empty + 8 * read.index());
        read.next();
    }

    // dQ of a tile for which no further one follows in time.
    __device__ __forceinline__ void last_dq(float (&dq)[1][dq_atoms][4]) {
        mbarrier_wait(smem + ds_full + 8 * read.index(), read.parity());
        multiply_dq(dq, smem + smem_ds + read.index() * share_bytes);
        wgmma_wait<0>(registers(dq));
        free_ds();
    }

@ end
@ include("piece/send_keys.cu", { shared = shared })
    // Computes dK and dV of a tile of keys, and what it gives to dQ.
    __device__ __forceinline__ void compute(int index, u32 parity) {
        int kv_head;
        Where at = tile_at(p, index, kv_head);
@ if pair then
        at = keys_of(at, rank);
@ end
@ if heads then
        begin_keys(index, at);
@ end
        float dk[m_atoms][dk_atoms][4], dv[m_atoms][dv_atoms][4];
        fill(dk, 0.0f);
        fill(dv, 0.0f);
@ if pair then
        int n = -1;           // the tile whose dS is to be multiplied; at.h is its head
@ elseif late then
        int n = -1, n_before = -1, head_before = 0; // the last tile and the one before it, whose dS is multiplied next
@ else
        u32 buffer = 0;   // of dS
        int n = -1;       // the tile whose dS waits in the other buffer to be multiplied; at.h is its head
@ end
        u32 used = empty + 8 * ring.index(); // the last tile's stage's barrier
@ if sums ~= "" then
        ArraySums sums;
@ end
@ if problem.dropout then
        Dropout<true> dropout(p, at.b, at.h, at.k_first + warp_row(), warp_col());
        int dropped = 0; // the tile that it stands at
@ end
        mbarrier_wait($(keys) + k_full, parity);
        give_back_held();
@ if shared > 1 then
        named_barrier_sync(1, 128 * consumers); // warps that share keys write dS where others' gradients passed through
@ end
@ for _, g in ipairs { { name = "k", count = layout.held_k, cols = layout.d_cols }, { name = "v", count = layout.held_v, cols = layout.dv_cols } } do
@   if g.count > 0 then
        u32 held_$(g.name)[$(g.count)][4];
#pragma unroll
        for (int j = 0; j < $(g.count); ++j) load_a<own_n, $(g.cols)>(held_$(g.name)[j], $(key_tiles) + smem_$(g.name), warp_row(), 0, j);
@   end
@ end
        int word = wait_tile(ring);
@ if not late and not pair then
        u32 ds_before = smem + smem_q + ring.index() * stage_bytes; // the last tile's
@ end
        while (word != no_more) {
            const u32 tile = smem + smem_q + ring.index() * stage_bytes, tile_ds = smem + smem_ds;
            float s[parts][q_atoms][4], dp[parts][q_atoms][4], dq[1][dq_atoms][4];
            u32 weights[parts][q_atoms / 2][4], ds[parts][q_atoms / 2][4];
@ if staged_dq then
            u32 left = 0; // the barrier of dQ of a tile before
@ end
@ if late then
            const u32 buffer = write.index() * share_bytes;
            if (n_before >= 0) mbarrier_wait(smem + ds_full + 8 * read.index(), read.parity());
            multiply_dq(dq, n_before >= 0 ? tile_ds + read.index() * share_bytes : tile); // of what is there the first times, and is not added
@ elseif pair then
            const u32 tile_dout = smem + smem_dout;
            const u32 last = exchange.index() ^ (n < 0);
            multiply_dq(dq, tile_ds + last * share_bytes); // of the tile before; of nothing the first time, which is not added
            wgmma_wait<2>(registers(dv));
            if (n >= 0) give_back(smem + dout_empty);
            mbarrier_wait(smem + ds_full + 8 * exchange.index(), exchange.parity() ^ (n < 0));
            gemm_dq_more(dq, n < 0 ? tile_ds + last * share_bytes : smem + smem_other_ds + last * ds_bytes,
                         own_columns<own_n, $(layout.dq_cols)>(smem + (n < 0 ? smem_k : smem_other_k)));
            if (n >= 0) exchange.next();
            const u32 buffer = exchange.index() * share_bytes;
@ else
            multiply_dq(dq, ds_before); // of the first tile what is there, which is not added
@ end
@ if not pair then
            const u32 tile_dout = tile + q_bytes;
            wgmma_wait<1>(registers(dk));                      // and dV
            if (n >= 0) give_back(smem + used);
@ end
@ local function scores(part) return layout.s_parts > 1 and "scores_of(s, " .. part .. ")" or "s" end
@ if plan.turns then
            wait_turn();
@ end
@ for part = 0, layout.s_parts - 1 do
            gemm_s(registers($(scores(part))), $(layout.held_k > 0 and "held_k, " or "")own_keys($(key_tiles) + smem_k), own_queries(tile$(part > 0 and " + " .. part * 8192 or ""))); // S^T = K Q^T
@ end
            wgmma_wait<$(layout.s_parts)>(registers(dq));
@ if pair then
            if (n >= 0) give_back(smem + used); // not before dQ: it tells the other CTA that its dS has been read
@ end
@ if late then
            if (n_before >= 0) {
                free_ds();
                $(staged_dq and "leave_dq" or "add_dq")(dq, at, head_before, n_before);
@   if staged_dq then
                left = next_dq();
@   end
            }
@ elseif staged_dq then
            if (n >= 0) {
                leave_dq(dq, at, at.h, n);
                left = next_dq();
            }
@ else
            if (n >= 0) add_dq$(halved and "<0, 2>" or "")(dq, at, at.h, n);
@ end
@ if pair then
            if (n < 0) mbarrier_wait(smem + other_full, parity);
            mbarrier_wait(smem + dout_full, dout_parity);
            dout_parity ^= 1;
@ end
@ local function multiply_dp(part)
            gemm_dp(registers(scores_of(dp, $(part))), $(layout.held_v > 0 and "held_v, " or "")own_keys($(key_tiles) + smem_v), own_queries(tile_dout$(part > 0 and " + " .. part * 8192 or ""))); // dP^T = V dO^T
@ end
@ multiply_dp(0)

            const int head = tile_head(ring);
@ if sums ~= "" then
            if (n >= 0 && head != at.h) flush(sums, p, at);
@ end
@ if problem.dropout then
            if (head != at.h) dropout = Dropout<true>(p, at.b, head, $(anew and "opaque(at.k_first)" or "at.k_first") + warp_row(), dropped * part_m + warp_col());
@ end
@ if late then
            n_before = n;
            head_before = at.h;
@ elseif halved then
            const int n_before = n, head_before = at.h;
@ end
            n = word >> 2;
            at.h = head;
@ for part = 0, layout.s_parts - 1 do
            wgmma_wait<1>(registers($(scores(part))));
@ end
@ if staged_dq then
            pass_dq(left);
@ end
@ for part = 0, layout.parts - 1 do
@   local name = "part_" .. part
            { // queries $(64 * part) to $(64 * part + 63) of the tile
                const u32 lse = smem + smem_rows + ring.index() * (block_m * 8) + $(256 * part), delta = lse + block_m * 4;
                const int $(name) = n * parts + $(part);
                float (&s_part)[m_atoms][q_atoms][4] = scores_of(s, $(part)), (&dp_part)[m_atoms][q_atoms][4] = scores_of(dp, $(part));
@   if problem.dropout then
                dropout.move(0, ($(name) - dropped) * part_m);
                dropped = $(name);
@   end
@   if #score.terms > 0 and not fused then
                score_tile(s_part, $(name), p, at$(staged.array and ", array.wait()" or ""));$(staged.array and " array.give_back();" or "")
@   end
                if (!(word & is_whole)) mask_tile(s_part, $(name), p, at);
@   if not fused then
                probabilities(s_part, lse, $(#score.terms > 0 and "log2_e" or "p.scale_log2"));
@   end
@   if halved and not late and part == layout.parts - 1 then
            if (n_before >= 0) add_dq<1, 2>(dq, at, head_before, n_before);
@   end
@ -- Packs x into operands.
@   local function pack(into, x)
#pragma unroll
                for (int j = 0; j < q_atoms / 2; ++j) pack_block($(into)[$(part)][j], $(x)[$(part)], j);
@   end
@   local function multiply_dv()
                gemm_dkv(dv, weights[$(part)], tile_dout$(part > 0 and " + " .. part * 8192 or "")); // dV += P^T dO
@   end
@   if early then
@     pack("weights", "s")
@     if shared == 1 then
@       multiply_dv()
@     else
                share(weights[$(part)], smem + smem_p + buffer); // before the wait, below which the weights would be computed
@     end
@   end
                wgmma_wait<$(early and shared == 1 and 1 + part or 2 * part)>(registers(dp_part));
@   if part == layout.parts - 1 then
                if (word & is_last && threadIdx.x % 32 == 0) mbarrier_arrive($(keys) + v_empty); // there is time to load the next V
@   end
@   include("piece/way_back.cu", { s = "s_part", dp = "dp_part", n = name, fused = fused, back = back, sums = sums .. (staged.grad and ", smem + smem_array" or "") })
@   if not early then
#pragma unroll
                for (int j = 0; j < q_atoms / 2; ++j) {
                    pack_block(weights[$(part)][j], s[$(part)], j);
@     if problem.dropout and fused then
                    dropout(weights[$(part)][j], 0, j);
@     end
                }
@   end
@   pack("ds", "dp")
@   if part + 1 < layout.parts then
@     multiply_dp(part + 1) -- when this part's registers are free
@   end
@   if shared == 1 then
@     if not early then
@       multiply_dv()
@     end
                gemm_dkv(dk, ds[$(part)], tile$(part > 0 and " + " .. part * 8192 or "")); // dK += dS^T Q
@   end
@   if plan.turns and part == 0 then
                pass_turn();
@   end
@   local last, whole = part == layout.parts - 1, late and plan.k_stages == 2 -- whole: of two buffers none is free before the tile's end
@   if late and (whole and last or not whole and part == 0) then
                mbarrier_wait(smem + ds_empty + 8 * write.index(), write.parity() ^ 1);
@   end
@   for written = whole and (last and 0 or layout.parts) or part, part do
                share(ds[$(written)], tile_ds + buffer$(written > 0 and " + " .. written .. " * (own_n * 128)" or ""));
@   end
@   if shared > 1 and not early then
                share(weights[$(part)], smem + smem_p + buffer);
@   end
            }
@ end
            fence_proxy_async();$(staged.grad and " array.send(at, n);" or "")
            used = empty + 8 * ring.index();
            ring.next();
@ if late then
            __syncwarp();
            if (threadIdx.x % 32 == 0) mbarrier_arrive(smem + ds_full + 8 * write.index());
            write.next();
            word = word & is_last ? no_more : wait_tile(ring);
        }
@ else
            word = word & is_last ? no_more : wait_tile(ring); // while others come to the barrier
            named_barrier_sync(1, 128 * consumers); // dS is there, and what lies in the other buffer has been read
@ if pair then
            send_ds();
@ end
@ if shared > 1 then
            gemm_dkv(dv, smem + smem_p + buffer, own_columns<block_m, $(layout.dv_own_cols)>(tile_dout)); // dV += P^T dO
            gemm_dkv(dk, tile_ds + buffer, own_columns<block_m, $(layout.dk_cols)>(tile));                  // dK += dS^T Q
@ end
@ if not pair then
            ds_before = tile_ds + buffer;
            buffer ^= share_bytes;
@ end
        }
@ end
@ if splits then
        const int split = warp_word(smem + key_split);
@ end
@ if staged_dq then
        u32 left = 0; // the last dQ's barrier
@ end
        if (n >= 0) {
            float dq[1][dq_atoms][4];
@ if late then
            if (n_before >= 0) {
                last_dq(dq);
                add_dq(dq, at, head_before, n_before);
            }
            last_dq(dq);
@ elseif pair then
            multiply_dq(dq, smem + smem_ds + exchange.index() * share_bytes);
            mbarrier_wait(smem + ds_full + 8 * exchange.index(), exchange.parity());
            gemm_dq_more(dq, smem + smem_other_ds + exchange.index() * ds_bytes, own_columns<own_n, $(layout.dq_cols)>(smem + smem_other_k));
            exchange.next();
            wgmma_wait<0>(registers(dq));
            give_back(smem + dout_empty);
@ else
            multiply_dq(dq, ds_before);
            wgmma_wait<0>(registers(dq));
@ end
            if (threadIdx.x % 32 == 0) mbarrier_arrive($(keys) + k_empty);
            named_barrier_sync(1, 128 * consumers); // every warp is done with dS, and with the last stage
@ if staged_dq then
            leave_dq(dq, at, at.h, n);
            fence_proxy_async();
            left = next_dq();
@ else
            add_dq(dq, at, at.h, n);
@ end
        } else {
            ring.next();
@ if pair then
            mbarrier_wait(smem + other_full, parity);
@ end
            if (threadIdx.x % 32 == 0) {
                mbarrier_arrive($(keys) + v_empty);
                mbarrier_arrive($(keys) + k_empty);
            }
        }
        wgmma_wait<0>(registers(dk));
        wgmma_wait<0>(registers(dv));
@ if pair then
        if (n >= 0) mbarrier_wait(smem + dout_empty, dout_parity ^ 1); // then the other CTA has the last dS
@ end
@ if sums ~= "" then
        if (n >= 0) flush(sums, p, at);
@ end
@ if anew then
        at.k_first = opaque(at.k_first)$(problem.packed and ", at.k_offset = opaque(at.k_offset)" or "");
@ end
        // One gradient passes through dS, and the one of fewer columns through the last stage.
@ local head = anew and not problem.gqa and not problem.seqused_k and "at.h" or "kv_head"
@ local indent = splits and "    " or ""
@ if splits then
        if (split >= 0) {
            leave_part(dk, p, at, split, kv_head, 0, $(shared == 1 and "0" or "group * " .. layout.dk_cols), head_dim);
            leave_part(dv, p, at, split, kv_head, head_dim, $(shared == 1 and "0" or "group * " .. layout.dv_own_cols), head_dim_v);
        } else {
@ end
        $(indent)send_dk(dk, $(through("dk")), at, $(head));
        $(indent)send_dv(dv, $(through("dv")), at, $(head));
@ if splits then
        }
@ end
@ if heads then
        send_rest(at);
@ end
@ if staged_dq then
        tell_adder(left); // behind dK and dV, for which warps wait where TMA's queue is full of an add
@ end
        __syncwarp(); // else the compiler takes the warp for divided from here on, and has no uniform registers for the loop
        held = used;
    }

    __device__ __forceinline__ void run() {
@ if plan.turns then
        if (group > 0) pass_turn(); // the first is the other's
@ end
@ if kv > 1 then
        for (Ring<$(kv)> ring_k;; ring_k.next()) {
            const u32 parity = ring_k.parity();
            key_bars = smem + ring_k.index() * kv_bars;
            key_tiles = smem + ring_k.index() * kv_bytes;
@ else
        for (u32 parity = 0;; parity ^= 1) {
@ end
            mbarrier_wait($(keys) + v_full, parity);
            const int index = warp_word($(keys) + key_tile);
            if (index == no_more) break;
            compute(index, parity);
        }
        give_back_held();
@ if staged.grad then
        array.finish();
@ end
    }
};
