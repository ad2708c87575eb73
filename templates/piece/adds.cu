@ local direct = plan.q_stages == 0
@ local waits = problem.deterministic -- tiles wait for those before them
@ local before = mask.q_order > 0 and "+" or "-" -- tiles of keys are claimed from the last, or from the first
@ if waits then
// dQ's sums in a fixed order: the tiles of keys that visit a tile of queries add to it as they are claimed, and p.added has one past
// the one that added last, 0 where none has. A CTA waits for none but tiles claimed before its own, whose CTAs run or are done.

// Whether the keys of `at` visit tile n of queries: what TileWalk finds.
__device__ __forceinline__ bool visits(const Params &p, const Where &at, int n) {
    const TileRange tiles = tile_range(p, at);
    if (n < tiles.begin || n >= tiles.end) return false;
@   if mask.words then
    return seen_of(n, p, at) & seen_some;
@   elseif mask.residual then
    return is_visited(n, tiles, p, at);
@   else
    return true;
@   end
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

@ end
@ if not waits then
// dQ's sums in no order: p.added has how many tiles of keys have come, or this, and more, once the first one's sum is there.
constexpr u32 is_there = 1u << 30;

@ end
@ if direct then
// Two warps: one gives the consumers leave to add, and one tells other CTAs once they have.
@ else
// Two warps, each of which adds the tiles that the consumers leave in one of two buffers: until an add is done, written down and seen by
// others about as much time passes as a tile takes. The first to come is the sum, which nobody clears.
@ end
struct Adder {
    const Params &p;
    const u32 smem;
    const int which; // of the two warps
    Ring<stages> ring;
    Ring<dq_buffers> dq_ring;

    __device__ __forceinline__ Adder(const Params &p_, u32 smem_, int which_) : p(p_), smem(smem_), which(which_) {}

@ if waits then
    __device__ __forceinline__ void wait_turn(const u32 *added, int before) {
        if (before < 0) return;
        while (ld_acquire_u32(added) != u32(before + 1)) {}
    }
@ end

    __device__ __forceinline__ void visit(const Where &at, int n) {
        const i64 tile = padded_start(p, at, at.h) / block_m + n;
        u32 *added = p.added + $(plan.cluster > 1 and "2 * tile + cluster_rank()" or "tile");
        const u32 $(waits and "own = at.k_first / block_n + 1, " or "")bar = 8 * dq_ring.index(), parity = dq_ring.parity();
@ if direct then
        if (which == 1) {
            if (elect_lane()) {
                mbarrier_wait(smem + dq_full + bar, parity);
                st_release_u32(added, own);
                mbarrier_arrive(smem + dq_empty + bar);
            }
        } else {
            const int before = tile_before(p, at, n);
            if (elect_lane()) {
                mbarrier_wait(smem + dq_empty + bar, parity ^ 1);
                wait_turn(added, before);
                mbarrier_arrive(smem + dq_turn + bar);
            }
        }
@ elseif waits then
        const int before = tile_before(p, at, n);
        if (elect_lane()) {
            wait_turn(added, before);
            fence_proxy_async_global();
            mbarrier_wait(smem + dq_full + bar, parity);
            float *sum = p.dq_acc + tile * (block_m * d_pad);
            const u32 dq = smem + smem_dq + dq_ring.index() * dq_bytes;
            if (before < 0)
                bulk_store(sum, dq, block_m * d_pad * 4);
            else
                bulk_add_f32(sum, dq, block_m * d_pad * 4);
            tma_store_commit();
            tma_store_wait<0>();
            st_release_u32(added, own);
            mbarrier_arrive(smem + dq_empty + bar);
        }
@ else
        if (elect_lane()) {
            bool there = ld_acquire_u32(added) >= is_there; // mostly, and while the consumers still compute what is to be added
            mbarrier_wait(smem + dq_full + bar, parity);
            const bool first = !there && atom_inc_u32(added, 0x7fffffff) == 0;
            while (!there && !first) there = ld_acquire_u32(added) >= is_there;
            fence_proxy_async_global();
            float *sum = p.dq_acc + tile * (block_m * d_pad);
            const u32 dq = smem + smem_dq + dq_ring.index() * dq_bytes;
            if (first) {
                bulk_store(sum, dq, block_m * d_pad * 4);
                tma_store_commit();
                tma_store_wait<0>();
                st_release_u32(added, is_there);
            } else {
                constexpr int pieces = 8, piece = block_m * d_pad / pieces; // between which loads of Q and dO pass
#pragma unroll
                for (int i = 0; i < pieces; ++i) bulk_add_f32(sum + i * piece, dq + i * piece * 4, piece * 4);
                tma_store_commit();
                tma_store_wait_read<0>();
            }
            mbarrier_arrive(smem + dq_empty + bar);
        }
@ end
        __syncwarp();
    }

    // What the producer wrote, which may then write again.
    __device__ __forceinline__ int read_slot(u32 slot) const { return warp_word(smem + slot); }
    __device__ __forceinline__ void free_slot(u32 bar) const {
        if (threadIdx.x % 32 == 0) mbarrier_arrive(smem + bar);
    }

    __device__ __forceinline__ void run() {
        for (u32 parity = 0;; parity ^= 1) {
            mbarrier_wait(smem + v_full, parity);
            const int index = read_slot(key_tile);
            free_slot(v_empty);
            if (index == no_more) return;
            int kv_head;
            Where at = tile_at(p, index, kv_head);
            int word = 0, n = -1, head = 0; // n: the tile before the one at hand, whose stage need not wait for its dQ
            do {
                const int before = n;
                at.h = head;
                n = -1;
                if (!(word & is_last)) {
                    mbarrier_wait(smem + full + 8 * ring.index(), ring.parity());
                    word = read_slot(stage_tile + 8 * ring.index());
                    head = read_slot(stage_tile + 8 * ring.index() + 4);
                    free_slot(empty + 8 * ring.index());
                    ring.next();
                    n = word >> 2;
                }
                if (before >= 0) {
                    $(direct and "" or "if (which == int(dq_ring.index())) ")visit(at, before);
                    dq_ring.next();
                }
            } while (n >= 0);
        }
    }
};
