    // The tile of keys that comes next, which the first CTA claims and tells the other.
    __device__ __forceinline__ int next_tile(int claimed) {
        const u32 slot = smem + claim_slot;
        if (rank == 0) {
            claimed = __shfl_sync(full_warp, claimed, 0);
            cluster_wait(smem + claim_empty, claim_parity ^ 1);
            if (threadIdx.x % 32 == 0) {
                cluster_store_u32(cluster_map(slot, 1), claimed);
                cluster_publish(cluster_map(smem + claim_full, 1));
            }
        } else {
            cluster_wait(smem + claim_full, claim_parity);
            claimed = warp_word(slot);
            if (threadIdx.x % 32 == 0) cluster_arrive(cluster_map(smem + claim_empty, 0));
        }
        claim_parity ^= 1;
        return claimed;
    }
