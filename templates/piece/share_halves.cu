@ -- Each CTA of the pair sums up S and dP over half of the columns, and weighs half of a warp's queries, those of its rank. A warp and the same
@ -- one of the other CTA send each other the sums of the other's queries; then both CTAs have P and dS of all.
    // A kind of sums (0: S, 1: dP) has a place and a barrier of each warp. What was sent before has been read when P and dS of the tile before are
    // there, of which each warp of the other CTA sends its own part behind its reads.
    static constexpr u32 sum_part = $(layout.sum_part);
    __device__ __forceinline__ u32 sums_of(int kind) const { return smem + $(layout.sums) + (2 * warp + kind) * sum_part; }
    __device__ __forceinline__ u32 sums_bar(int kind) const { return smem + sums_full + 8 * (2 * warp + kind); }

    __device__ __forceinline__ void send_sums(int kind, const float (&sums)[2 * q_atoms][4]) const {
        const u32 to = cluster_map(sums_of(kind) + threadIdx.x % 32 * 16, rank ^ 1), bar = cluster_map(sums_bar(kind), rank ^ 1);
#pragma unroll
        for (int i = 0; i < q_atoms; ++i) {
            u32 x[4];
#pragma unroll
            for (int e = 0; e < 4; ++e) x[e] = __float_as_uint(rank ? sums[i][e] : sums[q_atoms + i][e]);
            cluster_send_v4(to + i * 512, make_uint4(x[0], x[1], x[2], x[3]), bar);
        }
    }
    // x: the warp's own, of all columns.
    __device__ __forceinline__ void add_sums(int kind, float (&x)[m_atoms][q_atoms][4], const float (&sums)[2 * q_atoms][4]) const {
        const u32 bar = sums_bar(kind), from = sums_of(kind) + threadIdx.x % 32 * 16;
        if (threadIdx.x % 32 == 0) mbarrier_arrive_expect_tx(bar, sum_part);
        mbarrier_wait(bar, parity);
#pragma unroll
        for (int i = 0; i < q_atoms; ++i) {
            const uint4 others = ld_shared_v4(from + i * 512);
            const u32 other[4] = {others.x, others.y, others.z, others.w};
#pragma unroll
            for (int e = 0; e < 4; ++e) x[0][i][e] = (rank ? sums[q_atoms + i][e] : sums[i][e]) + __uint_as_float(other[e]);
        }
    }

    // The warp's parts of P^T and dS^T to the tiles of both CTAs. shared_full counts the warps, and what comes from the other CTA.
    __device__ __forceinline__ void share_both(const u32 (&weights)[q_atoms / 2][4], const u32 (&ds)[q_atoms / 2][4]) const {
        mbarrier_wait(smem + shared_empty, parity ^ 1);
        share(weights, smem + smem_p);
        share(ds, smem + smem_ds);
        __syncwarp();
#pragma unroll
        for (int j = 0; j < q_atoms / 2; ++j) {
            const int lane = threadIdx.x % 32;
            const u32 chunk = smem + fragment_offset<own_n, part_m>(0, warp_row() + lane % 16, warp_col() / 16 + j, lane / 16);
            const u32 there = cluster_map(chunk, rank ^ 1), bar = cluster_map(smem + shared_full, rank ^ 1);
            cluster_send_v4(there + smem_p, ld_shared_v4(chunk + smem_p), bar);
            cluster_send_v4(there + smem_ds, ld_shared_v4(chunk + smem_ds), bar);
        }
        fence_proxy_async();
        __syncwarp();
        if (threadIdx.x % 32 == 0) mbarrier_arrive_expect_tx(smem + shared_full, 2 * (q_atoms / 2 * 512));
    }
    __device__ __forceinline__ void wait_shared() const {
        mbarrier_wait(smem + shared_full, parity);
        fence_proxy_async(); // products read what the other CTA sent
    }
    // The warp's products have read P and dS, which both CTAs may overwrite when all of both have.
    __device__ __forceinline__ void give_back_shared() const {
        if (threadIdx.x % 32 != 0) return;
        mbarrier_arrive(smem + shared_empty);
        cluster_arrive(cluster_map(smem + shared_empty, rank ^ 1));
    }
