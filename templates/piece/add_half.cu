    // Each CTA has half of the columns of Q and K, and so half of each score's sum: warps send each other theirs, and both add them up, to
    // the same bits. What was sent before must have been read.
    __device__ __forceinline__ void add_half(float (&s)[m_atoms][s_atoms][4]) {
        const u32 lane = lane_anew(), own = smem + $(layout.halves) + warp * (s_atoms * 512) + lane * 16, bars = smem + half_bars + 16 * warp;
        const u32 theirs = cluster_map(own, cluster_rank() ^ 1), their_bars = cluster_map(bars, cluster_rank() ^ 1);
        if (lane == 0) mbarrier_arrive_expect_tx(bars, s_atoms * 512);
        mbarrier_wait(bars + 8, half_parity ^ 1);
#pragma unroll
        for (int i = 0; i < s_atoms; ++i) cluster_send_v4(theirs + i * 512, s[0][i], their_bars);
        mbarrier_wait(bars, half_parity);
#pragma unroll
        for (int i = 0; i < s_atoms; ++i) {
            const uint4 sent = ld_shared_v4(own + i * 512);
            s[0][i][0] += __uint_as_float(sent.x), s[0][i][1] += __uint_as_float(sent.y);
            s[0][i][2] += __uint_as_float(sent.z), s[0][i][3] += __uint_as_float(sent.w);
        }
        __syncwarp();
        if (lane == 0) cluster_arrive(their_bars + 8);
        half_parity ^= 1;
    }
