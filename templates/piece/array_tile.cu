// The consumers' side of the array's tile.
struct ArrayTile {
    const Params &p;
    const u32 smem;
    u32 parity = 0;
@ if staged.grad then
    const bool boxed; // the gradient takes the tile's place, from where it is sent
@ end

    __device__ __forceinline__ ArrayTile(const Params &p_, u32 smem_) : p(p_), smem(smem_)$(staged.grad and ", boxed(p_.array_grad[" .. staged.slot .. "].boxed)" or "") {}

    __device__ __forceinline__ u32 wait() {
        mbarrier_wait(smem + array_full, parity);
        parity ^= 1;
        return smem + smem_array;
    }

    // This warp has read the tile, or written the gradient there.
    __device__ __forceinline__ void pass(u32 bar) const {
        __syncwarp();
        if (threadIdx.x % 32 == 0) mbarrier_arrive(smem + bar);
    }
    __device__ __forceinline__ void give_back() const {
@ if staged.grad and staged.array.bytes == 2 then
        if (boxed) named_barrier_sync(3 + threadIdx.x / 128, 128); // gradients lie where other warps of the warpgroup read
@ end
@ if staged.grad then
        if (boxed) return;
@ end
        fence_proxy_async(); // reads are done before the next copy, which arrivals alone do not order
        pass(array_empty);
    }
@ if staged.grad then

    // Once fence_proxy_async is behind what was written.
    __device__ __forceinline__ void send(const Where &at, int n) const {
        if (!boxed) return;
        if (threadIdx.x == 0) st_shared_v4(smem + gradient_place, make_uint4(at.k_first, n * block_m, $(staged.entry("array_grad", "h")), $(staged.entry("array_grad", "b"))));
        pass(gradient_full);
    }
    __device__ __forceinline__ void finish() const {
        if (!boxed) return;
        mbarrier_wait(smem + array_empty, parity ^ 1); // the last gradient is on its way
        if (threadIdx.x == 0) st_shared_u32(smem + gradient_place, u32(no_more));
        pass(gradient_full);
    }
@ end
};
@ if staged.grad then

@   include("piece/gradient_sender.cu", { staged = staged })
@ end
