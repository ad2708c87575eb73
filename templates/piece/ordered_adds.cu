// dQ's sums in a fixed order: the tiles of keys that visit a tile of queries add to it as they are claimed, and p.added has one past
// the one that added last. A CTA waits for none but tiles claimed before its own, whose CTAs run or are done.

@ local residual, direct = mask.residual, plan.q_stages == 0
@ -- Tiles of keys are claimed from the first, or from the last.
@ local before = mask.q_order > 0 and "+" or "-"
// Whether the keys of `at` visit tile n of queries: what TileWalk finds.
__device__ __forceinline__ bool visits(const Params &p, const Where &at, int n) {
    const TileRange tiles = tile_range(p, at);
    if (n < tiles.begin || n >= tiles.end) return false;
@ if residual then
    // As scan_tiles asks, of the word first.
    const int word_first = n & ~31;
    const Interval word = residual_of(max(word_first, tiles.begin), min(word_first + 32, tiles.end) - 1, p, at);
    if (word_first >= tiles.full_begin && word_first + 32 <= tiles.full_end && word.lo == 1) return true;
    return word.hi != 0 && residual_of(n, n, p, at).hi != 0;
@ else
    return true;
@ end
}

// The tile of keys that adds to tile n of queries before that of `at` does; -1: none.
__device__ __forceinline__ int tile_before(const Params &p, const Where &at, int n) {
    Where other = at;
    for (other.k_first $(before)= (1 + threadIdx.x % 32) * block_n;; other.k_first $(before)= 32 * block_n) {
        const bool exists = $(mask.q_order > 0 and "other.k_first < at.seqlen_k" or "other.k_first >= 0");
        other.k_last = min(other.k_first + block_n, at.seqlen_k) - 1;
        const u32 visitors = __ballot_sync(full_warp, exists && visits(p, other, n));
        if (visitors) return __shfl_sync(full_warp, other.k_first / block_n, __ffs(visitors) - 1);
        if (!__all_sync(full_warp, exists)) return -1;
    }
}

@ if direct then
// Two warps: one gives the consumers leave to add, and one tells other CTAs once they have.
@ else
// One warp, which adds the tiles that the consumers leave in shared memory.
@ end
struct Adder {
    const Params &p;
    const u32 smem;
@ if direct then
    const bool tells;
@ end
    Ring<dq_buffers> ring;

@ if direct then
    __device__ __forceinline__ Adder(const Params &p_, u32 smem_, bool tells_) : p(p_), smem(smem_), tells(tells_) {}
@ else
    __device__ __forceinline__ Adder(const Params &p_, u32 smem_) : p(p_), smem(smem_) {}
@ end

    __device__ __forceinline__ void wait_turn(const u32 *added, int before) {
        if (before < 0) return;
        while (ld_acquire_u32(added) != u32(before + 1)) {}
    }

    __device__ __forceinline__ void visit(const Where &at, int n) {
        const i64 tile = padded_start(p, at, at.h) / block_m + n;
        u32 *added = p.added + tile;
        const u32 own = at.k_first / block_n + 1, bar = 8 * ring.index();
@ if direct then
        if (tells) {
            if (elect_lane()) {
                mbarrier_wait(smem + dq_full + bar, ring.parity());
                st_release_u32(added, own);
                mbarrier_arrive(smem + dq_empty + bar);
            }
        } else {
            const int before = tile_before(p, at, n);
            if (elect_lane()) {
                mbarrier_wait(smem + dq_empty + bar, ring.parity() ^ 1);
                wait_turn(added, before);
                mbarrier_arrive(smem + dq_turn + bar);
            }
        }
@ else
        const int before = tile_before(p, at, n);
        if (elect_lane()) {
            wait_turn(added, before);
            fence_proxy_async_global();
            mbarrier_wait(smem + dq_full + bar, ring.parity());
            bulk_add_f32(p.dq_acc + tile * (block_m * d_pad), smem + smem_dq + ring.index() * dq_bytes, block_m * d_pad * 4);
            tma_store_commit();
            tma_store_wait<0>();
            st_release_u32(added, own);
            mbarrier_arrive(smem + dq_empty + bar);
        }
@ end
        __syncwarp();
        ring.next();
    }

    __device__ __forceinline__ void run() {
        for (u32 parity = 0;; parity ^= 1) {
            mbarrier_wait(smem + k_full, parity);
            const int index = __shfl_sync(full_warp, ld_shared_u32(smem + key_tile), 0);
            if (index == no_more) return;
            if (threadIdx.x % 32 == 0) mbarrier_arrive(smem + v_empty); // key_tile has been read
            int kv_head;
            Where at = tile_at(p, index, kv_head);
            for (int head = 0; head < p.heads_per_kv; ++head, ++at.h)
                for (TileWalk walk(p, at); walk.n >= 0; walk.next(p, at)) visit(at, walk.n);
        }
    }
};
