// A warp that adds the gradients which the consumers leave in the array's tile to those in memory, or stores them there where no other
// tile has elements of its own; then the tile may be filled again.
struct GradientSender {
    const Params &p;
    const u32 smem;

    __device__ __forceinline__ GradientSender(const Params &p_, u32 smem_) : p(p_), smem(smem_) {}

    __device__ __forceinline__ void run() {
        for (u32 parity = 0;; parity ^= 1) {
            mbarrier_wait(smem + gradient_full, parity);
            if (int(warp_word(smem + gradient_place)) == no_more) return;
            if (elect_lane()) {
                const uint4 place = ld_shared_v4(smem + gradient_place); // key, query, head, batch entry
#pragma unroll
                for (int panel = 0; panel < own_n / 32; ++panel) {
                    const u32 from = smem + smem_array + panel * 8192;
                    if (p.array_grad[$(staged.slot)].once)
                        tma_store_4d(&p.map_array_grad, from, place.x + 32 * panel, place.y, place.z, place.w);
                    else
                        tma_add_4d(&p.map_array_grad, from, place.x + 32 * panel, place.y, place.z, place.w);
                }
                tma_store_commit();
                tma_store_wait_read<0>();
                mbarrier_arrive(smem + array_empty);
            }
            __syncwarp();
        }
    }
};
