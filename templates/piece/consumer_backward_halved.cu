@ -- The consumers where each CTA of a pair has half of all columns: of Q, K, V and dO, and of the three gradients. Scores and dP are sums of what
@ -- both have (piece/share_halves.cu); all else a CTA computes by itself. Its two warpgroups share 64 keys: first the queries of a tile, then
@ -- the columns of the gradients.
struct Consumer {
    const Params &p;
    const u32 smem;
    const int warp, group; // which of the consumers' warps and warpgroups
    const u32 rank = cluster_rank();
    Ring<stages> ring;     // the tile at hand
    u32 held = 0;          // the barrier of the stage through which the gradients leave: its keys' last
    u32 parity = 0;        // of all that is sent for the tile at hand
@ if adders then
    Ring<dq_buffers> dq_ring;
@ end

    __device__ __forceinline__ Consumer(const Params &p_, u32 smem_, int warp_) : p(p_), smem(smem_), warp(warp_), group(warp_ / 4) {}

@ include("piece/backward_stages.cu", { pair = false })

    __device__ __forceinline__ u32 own_queries(u32 tile) const { return tile + group * $(layout.score_cols * 128); }

    // dQ = dS K, the warpgroup's columns.
    __device__ __forceinline__ void multiply_dq(float (&dq)[1][dq_atoms][4], u32 tile_ds) const {
        gemm_dq(dq, tile_ds, own_columns<own_n, $(layout.dq_cols)>(smem + smem_k));
    }

@ include("piece/share_halves.cu")

@ include("piece/add_dq.cu", { adders = adders, staged_dq = false, halved = true, by_rows = false, pair = true })

@ include("piece/send_keys.cu", { shared = shared })
    // Computes dK and dV of a tile of keys, and what it gives to dQ.
    __device__ __forceinline__ void compute(int index, u32 key_parity) {
        int kv_head;
        Where at = tile_at(p, index, kv_head);
        float dk[m_atoms][dk_atoms][4], dv[m_atoms][dv_atoms][4];
        fill(dk, 0.0f);
        fill(dv, 0.0f);
        int n = -1; // the tile whose dQ is still to be added; at.h is its head
        u32 used = empty + 8 * ring.index(); // the last tile's stage's barrier
@ if sums ~= "" then
        ArraySums sums;
@ end
@ if problem.dropout then
        Dropout<true> dropout(p, at.b, at.h, at.k_first + warp_row(), warp_col());
        int dropped = 0; // the tile that it stands at
@ end
        mbarrier_wait(smem + k_full, key_parity);
        give_back_held();
        int word = wait_tile(ring), head = word == no_more ? at.h : tile_head(ring);
        float s_sums[1][2 * q_atoms][4], dq[1][dq_atoms][4];
        if (word != no_more) {
            gemm_s(registers(s_sums), smem + smem_k, own_queries(smem + smem_q + ring.index() * stage_bytes));
            wgmma_wait<0>(registers(s_sums));
            send_sums(0, s_sums[0]);
        }
        while (word != no_more) { // S is there, and products of the tile before are in flight: dK and dQ
            const u32 tile = smem + smem_q + ring.index() * stage_bytes, tile_dout = tile + q_bytes;
            float dp_sums[1][2 * q_atoms][4], s[m_atoms][q_atoms][4], dp[m_atoms][q_atoms][4];
            u32 weights[q_atoms / 2][4], ds[q_atoms / 2][4];
            wgmma_wait<1>(registers(dk));
            if (n >= 0) give_back(smem + used);
            wgmma_wait<0>(registers(dq));
            if (n >= 0) give_back_shared();
            add_sums(0, s, s_sums[0]);
            const int n_before = n, head_before = at.h;
@ local function add_part(part) -- the queue of adds is short, and all that passes shared memory waits behind it
            if (n_before >= 0) add_dq<$(part), 4>(dq, at, head_before, n_before);
@ end
@ add_part(0)
            gemm_dp(registers(dp_sums), smem + smem_v, own_queries(tile_dout)); // dP^T = V dO^T
@ if sums ~= "" then
            if (n >= 0 && head != at.h) flush(sums, p, at);
@ end
@ if problem.dropout then
            if (head != at.h) dropout = Dropout<true>(p, at.b, head, at.k_first + warp_row(), dropped * part_m + warp_col());
            dropout.move(0, ((word >> 2) - dropped) * part_m);
            dropped = word >> 2;
@ end
            n = word >> 2;
            at.h = head;
            const u32 lse = smem + smem_rows + ring.index() * (block_m * 8), delta = lse + block_m * 4;
@ if #score.terms > 0 and not fused then
            score_tile(s, n, p, at);
@ end
            if (!(word & is_whole)) mask_tile(s, n, p, at);
@ add_part(1)
@ if not fused then
            probabilities(s, lse, $(#score.terms > 0 and "log2_e" or "p.scale_log2"));
@ end
@ add_part(2)
            used = empty + 8 * ring.index();
            ring.next();
            const int next = word & is_last ? no_more : wait_tile(ring);
            const int next_head = next == no_more ? at.h : tile_head(ring);
            wgmma_wait<0>(registers(dp_sums));
            if (word & is_last && threadIdx.x % 32 == 0) mbarrier_arrive(smem + v_empty); // there is time to load the next V
            send_sums(1, dp_sums[0]);
@ add_part(3)
            // S^T = K Q^T of the next tile; of this one where none follows, which nobody asks for.
            gemm_s(registers(s_sums), smem + smem_k, own_queries(next == no_more ? tile : smem + smem_q + ring.index() * stage_bytes));
            add_sums(1, dp, dp_sums[0]);
@ include("piece/way_back.cu", { s = "s", dp = "dp", n = "n", fused = fused, back = back, sums = sums })
#pragma unroll
            for (int j = 0; j < q_atoms / 2; ++j) {
                pack_block(weights[j], s[0], j);
@ if problem.dropout and fused then
                dropout(weights[j], 0, j);
@ end
                pack_block(ds[j], dp[0], j);
            }
            share_both(weights, ds);
            wait_shared();
            gemm_dkv(dv, smem + smem_p, own_columns<block_m, $(layout.dv_own_cols)>(tile_dout)); // dV += P^T dO
            gemm_dkv(dk, smem + smem_ds, own_columns<block_m, $(layout.dk_cols)>(tile));         // dK += dS^T Q
            multiply_dq(dq, smem + smem_ds);
            wgmma_wait<3>(registers(s_sums));
            if (next != no_more) send_sums(0, s_sums[0]);
            word = next, head = next_head;
            parity ^= 1;
        }
@ if splits then
        const int split = warp_word(smem + key_split);
@ end
        if (n >= 0) {
            wgmma_wait<0>(registers(dq));
            give_back_shared();
            if (threadIdx.x % 32 == 0) mbarrier_arrive(smem + k_empty);
            add_dq(dq, at, at.h, n);
        } else {
            ring.next();
            if (threadIdx.x % 32 == 0) {
                mbarrier_arrive(smem + v_empty);
                mbarrier_arrive(smem + k_empty);
            }
        }
        wgmma_wait<0>(registers(dk));
        wgmma_wait<0>(registers(dv));
        named_barrier_sync(1, 128 * consumers); // every warp is done with the last stage
@ if sums ~= "" then
        if (n >= 0) flush(sums, p, at);
@ end
        // Both gradients pass through the last stage.
        const u32 through = smem + smem_q + (used - empty) / 8 * stage_bytes;
@ local indent = splits and "    " or ""
@ if splits then
        if (split >= 0) {
            leave_part(dk, p, at, split, kv_head, 0, rank * own_d + group * $(layout.dk_cols), head_dim);
            leave_part(dv, p, at, split, kv_head, head_dim, rank * own_dv + group * $(layout.dv_own_cols), head_dim_v);
        } else {
@ end
        $(indent)send_dk(dk, through, at, kv_head);
        $(indent)send_dv(dv, through + q_bytes, at, kv_head);
@ if splits then
        }
@ end
        __syncwarp(); // else the compiler takes the warp for divided from here on, and has no uniform registers for the loop
        held = used;
    }

    __device__ __forceinline__ void run() {
        for (u32 key_parity = 0;; key_parity ^= 1) {
            mbarrier_wait(smem + v_full, key_parity);
            const int index = warp_word(smem + key_tile);
            if (index == no_more) break;
            compute(index, key_parity);
        }
        give_back_held();
    }
};
