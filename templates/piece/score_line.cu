@ -- What terms add to s along the keys in straight lines, all rows' as steep, is one more step of the depth of S = Q K^T. Its B has for key j
@ -- of a tile j, j and j / 256, its A for each row the same: half of what is added from key to key to the raw score, in three parts, so that
@ -- no digit is lost. Both halves of the step read these 16 bytes. What is added at a tile's first key goes with m.
@ local tile = problem.dtype
constexpr u32 line_keys = $(layout.line), line_none = line_keys + block_n * 16, line_slopes = line_none + 128;

// By all threads, before the barrier at the start: B, and an A that adds nothing.
__device__ __forceinline__ void init_line(u32 smem) {
    for (int i = threadIdx.x; i < block_n + 8; i += threads) {
        const float j = i < block_n ? float(i) : 0.0f;
        st_shared_v4(smem + line_keys + 16 * i, make_uint4(pack_$(tile)(j, j), pack_$(tile)(j * 0x1p-8f, 0.0f), 0, 0));
    }
    fence_proxy_async();
}

__device__ __forceinline__ u64 line_step(u32 addr, u32 stride = 0) { return wgmma_descriptor<0>(addr, 0, stride); }

// The line of a warpgroup's rows. Scores of tiles on it are weighed as plain ones.
struct Line {
    const u32 own, none;
    const u64 keys;
    u32 slopes = none;         // A of the tile at hand
    int begin = block_n << 16; // it goes on down to this tile; above the one at hand: not known
    // log2 e (f - m) at one end of it, negative; from key to key; and how far the tile's first key is from that end.
    float end[2], slope, from_end;

    __device__ __forceinline__ explicit Line(u32 smem, int group)
        : own(smem + line_slopes + 128 * group), none(u32(line_step(smem + line_none))), keys(line_step(smem + line_keys, 128)) {}

    __device__ __forceinline__ bool straight() const { return slopes != none; } // does the tile at hand lie on it?
    // Of the tile at hand, what m_scaled is to plain scores.
    __device__ __forceinline__ u64 reference() const {
        return pair_f32(fmaf(-slope, from_end, end[0]), fmaf(-slope, from_end, end[1]));
    }

    // The tile at hand becomes the next one.
    __device__ __forceinline__ void next(int tile, const TileRange &tiles, int group, const u64 (&m_scaled)[m_atoms], const Params &p, const Where &at) {
        from_end -= block_n;
        if (tile < begin) begin_at(tile, tiles, group, m_scaled, p, at);
    }

    // It is the last one of a line, which goes on as far as whole tiles do and nothing bends, or of none.
    __device__ __forceinline__ void begin_at(int last, const TileRange &tiles, int group, const u64 (&m_scaled)[m_atoms], const Params &p, const Where &at) {
        const int q_0 = at.q_first + 64 * group;
        begin = last, slopes = none;
        if (last < tiles.full_begin || last >= tiles.full_end) return;
        int most = last + 1; // the least tile of those that are known to lie on it
        for (int least = tiles.full_begin, n = least; least < most; n = most > last ? last : (least + most) / 2) {
            if (is_straight(n, last, q_0, p, at))
                most = n;
            else
                least = n + 1;
        }
        if (most > last) return;
        begin = most;
        const int low = begin * block_n, high = (last + 1) * block_n - 1;
        const float by_key = (score_at(0.0f, q_0, high, p, at) - score_at(0.0f, q_0, low, p, at)) / float(high - low);
        const float half = by_key / (2.0f * p.scale);
        if (!__all_sync(full_warp, fabsf(half) < $(tile == "fp16" and "0x1p15f" or "0x1p100f"))) return; // an operand that is no number
        slopes = u32(line_step(own));
        slope = by_key * log2_e;
        const int lane = lane_anew();
        float scaled[2], other[2];
        unpair_f32(scaled[0], scaled[1], m_scaled[0]);
#pragma unroll
        for (int r = 0; r < 2; ++r) {
            const int row = opaque(at.q_first) + warp_row() + 8 * r + lane / 4;
            end[r] = fmaf(score_at(0.0f, row, high, p, at), -log2_e, scaled[r]);
            other[r] = fmaf(score_at(0.0f, row, low, p, at), -log2_e, scaled[r]);
        }
        from_end = 1 - block_n;
        if (fabsf(other[0]) < fabsf(end[0])) { // the smaller one is the more precise
            end[0] = other[0], end[1] = other[1];
            from_end = (last - begin) * block_n;
        }
        const u32 first = pack_$(tile)(half, 0.0f);
        const float rest = half - lower_$(tile)(first);
        const u32 second = pack_$(tile)(rest, 0.0f);
        const int barrier = $(1 + plan.teams * plan.consumers) + threadIdx.x / 128;
        named_barrier_sync(barrier, 128); // no product reads it any more
        if (threadIdx.x % 128 < 8)
            st_shared_v4(own + threadIdx.x % 8 * 16, make_uint4(first | second << 16, pack_$(tile)((rest - lower_$(tile)(second)) * 0x1p8f, 0.0f), 0, 0));
        fence_proxy_async();
        named_barrier_sync(barrier, 128);
    }
};
