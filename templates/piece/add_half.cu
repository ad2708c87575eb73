@ -- Each CTA of the pair sums up scores over half of the columns, and weighs those of half of a tile's keys, its own, which lie first among
@ -- its tile's. A warp and the same one of the other CTA send each other sums of the other's keys, and then the weights of their own.
@ local lost = steps.few_keys == "tile"
    // What is sent lies where it came from: sums of scores, then weights, each lane's in its place, then four numbers of each quad's rows. Each
    // kind has a barrier that counts it. Who sends one kind has had what the other sent before, and so knows that what it overwrites was read.
    static constexpr int weight_parts = (s_atoms + 1) / 2; // of 16 bytes
    static constexpr u32 sent_weights = s_atoms * 512, sent_rows = sent_weights + weight_parts * 512, sent_bytes = sent_rows + 128;
    __device__ __forceinline__ u32 sent() const { return smem + $(layout.halves) + warp * sent_bytes; }
    __device__ __forceinline__ u32 sent_bar(int kind) const { return smem + half_bars + 8 * (3 * warp + kind); }
    static __device__ __forceinline__ u32 there(u32 here) { return cluster_map(here, cluster_rank() ^ 1); }
    static __device__ __forceinline__ void wait_sent(u32 bar, u32 parity, u32 bytes) {
        if (lane_anew() == 0) mbarrier_arrive_expect_tx(bar, bytes);
        mbarrier_wait(bar, parity);
    }

    __device__ __forceinline__ void send_sums(const float (&sums)[m_atoms][2 * s_atoms][4]) const {
        const u32 to = there(sent() + lane_anew() * 16), to_bar = there(sent_bar(0));
#pragma unroll
        for (int i = 0; i < s_atoms; ++i) {
            const float *x = sums[0][s_atoms + i];
            cluster_send_v4(to + i * 512, make_uint4(__float_as_uint(x[0]), __float_as_uint(x[1]), __float_as_uint(x[2]), __float_as_uint(x[3])), to_bar);
        }
    }
    // s: the scores of the CTA's keys.
    __device__ __forceinline__ void add_sums(float (&s)[m_atoms][s_atoms][4], const float (&sums)[m_atoms][2 * s_atoms][4]) {
        const u32 place = sent() + lane_anew() * 16;
        wait_sent(sent_bar(0), half_parity, s_atoms * 512);
        half_parity ^= 1;
#pragma unroll
        for (int i = 0; i < s_atoms; ++i) {
            const uint4 x = ld_shared_v4(place + i * 512);
            s[0][i][0] = sums[0][i][0] + __uint_as_float(x.x), s[0][i][1] = sums[0][i][1] + __uint_as_float(x.y);
            s[0][i][2] = sums[0][i][2] + __uint_as_float(x.z), s[0][i][3] = sums[0][i][3] + __uint_as_float(x.w);
        }
    }

    // Operand A of a tile has two words of each atom of keys, first the CTA's own.
    static constexpr int own_words = 2 * s_atoms;
    static __device__ __forceinline__ u32 &word(u32 (&weights)[p_steps][4], int i) { return weights[i / 4][i % 4]; }
    __device__ __forceinline__ void send_weights(u32 (&weights)[p_steps][4]) const {
        const u32 to = there(sent() + sent_weights + lane_anew() * 16), to_bar = there(sent_bar(1));
#pragma unroll
        for (int j = 0; j < weight_parts; ++j) {
            const bool whole = 4 * j + 4 <= own_words;
            cluster_send_v4(to + j * 512, make_uint4(word(weights, 4 * j), word(weights, 4 * j + 1), whole ? word(weights, 4 * j + 2) : 0, whole ? word(weights, 4 * j + 3) : 0), to_bar);
        }
    }
    __device__ __forceinline__ void receive_weights(u32 (&weights)[p_steps][4]) const {
        const u32 place = sent() + sent_weights + lane_anew() * 16;
        wait_sent(sent_bar(1), half_parity ^ 1, weight_parts * 512);
#pragma unroll
        for (int j = 0; j < weight_parts; ++j) {
            const uint4 x = ld_shared_v4(place + j * 512);
            const u32 words[4] = {x.x, x.y, x.z, x.w};
#pragma unroll
            for (int i = 4 * j; i < min(4 * j + 4, own_words); ++i) word(weights, own_words + i) = words[i % 4];
        }
    }

    // Four numbers that a quad has of its rows: the other CTA's of the same rows.
    __device__ __forceinline__ uint4 exchange_rows(float a, float b, float c, float d) {
        const int lane = lane_anew();
        const u32 place = sent() + sent_rows + lane / 4 * 16, bar = sent_bar(2);
        if (lane % 4 == 0) cluster_send_v4(there(place), make_uint4(__float_as_uint(a), __float_as_uint(b), __float_as_uint(c), __float_as_uint(d)), there(bar));
        wait_sent(bar, rows_parity, 128);
        rows_parity ^= 1;
        return ld_shared_v4(place);
    }
    __device__ __forceinline__ void share_maximum(float (&m)[m_atoms][2]) {
        const uint4 other = exchange_rows(m[0][0], m[0][1], 0.0f, 0.0f);
        m[0][0] = fmaxf(m[0][0], __uint_as_float(other.x)), m[0][1] = fmaxf(m[0][1], __uint_as_float(other.y));
    }
    // What lanes have summed up, over the keys of both CTAs; then a quad's first lane has all of it.
    __device__ __forceinline__ void add_row_sums(float (&l)[m_atoms][2]$(lost and ", float (&lost)[2]" or "")) {
        float sums[4] = {l[0][0], l[0][1], $(lost and "lost[0], lost[1]" or "0.0f, 0.0f")};
#pragma unroll
        for (int i = 0; i < $(lost and 4 or 2); ++i) sums[i] = quad_sum(sums[i]);
        const uint4 other = exchange_rows(sums[0], sums[1], sums[2], sums[3]);
        const bool first = lane_anew() % 4 == 0;
        l[0][0] = first ? sums[0] + __uint_as_float(other.x) : 0.0f, l[0][1] = first ? sums[1] + __uint_as_float(other.y) : 0.0f;
@ if lost then
        lost[0] = first ? sums[2] + __uint_as_float(other.z) : 0.0f, lost[1] = first ? sums[3] + __uint_as_float(other.w) : 0.0f;
@ end
    }
