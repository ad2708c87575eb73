// Boxes of a tensor between global and shared memory. `map` is a 64-byte aligned CUtensorMap among the kernel's parameters;
// the coordinates of the box's first element go from the innermost dimension out. One thread issues a copy.

// True for one lane of the warp, which is whole here, and always the same; where it is asked in the condition of a branch, the
// compiler knows that one lane alone is within, and spares the copy's operands a loop over lanes.
__device__ __forceinline__ bool elect_lane() {
    u32 elected;
    asm volatile("{\n.reg .pred p;\nelect.sync _|p, 0xffffffff;\nselp.u32 %0, 1, 0, p;\n}" : "=r"(elected)::"memory");
    return elected;
}

__device__ __forceinline__ void tma_prefetch_map(const void *map) {
    asm volatile("prefetch.tensormap [%0];" ::"l"(map) : "memory");
}

// Elements outside the tensor arrive as zeros, and their bytes count for the mbarrier as well.
__device__ __forceinline__ void tma_load_4d(u32 dst, const void *map, u32 bar, int c0, int c1, int c2, int c3) {
    asm volatile("cp.async.bulk.tensor.4d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%3, %4, %5, %6}], [%2];"
                 ::"r"(dst), "l"(map), "r"(bar), "r"(c0), "r"(c1), "r"(c2), "r"(c3) : "memory");
}

@ if walk == "q" or mask.runs then
// `bytes` (a multiple of 16, from a multiple of 16 on) that lie side by side.
__device__ __forceinline__ void bulk_load(u32 dst, const void *src, u32 bytes, u32 bar) {
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];"
                 ::"r"(dst), "l"(src), "r"(bytes), "r"(bar) : "memory");
}

@ end
@ if walk == "q" then
@   if plan.adders then
__device__ __forceinline__ void bulk_store(void *dst, u32 src, u32 bytes) {
    asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" ::"l"(dst), "r"(src), "r"(bytes) : "memory");
}

@   end
// Adds floats to global memory, in no order; committed and waited for as stores are.
__device__ __forceinline__ void bulk_add_f32(float *dst, u32 src, u32 bytes) {
    asm volatile("cp.reduce.async.bulk.global.shared::cta.bulk_group.add.f32 [%0], [%1], %2;"
                 ::"l"(dst), "r"(src), "r"(bytes) : "memory");
}

@ end
// Elements outside the tensor are not written.
__device__ __forceinline__ void tma_store_4d(const void *map, u32 src, int c0, int c1, int c2, int c3) {
    asm volatile("cp.async.bulk.tensor.4d.global.shared::cta.bulk_group [%0, {%2, %3, %4, %5}], [%1];"
                 ::"l"(map), "r"(src), "r"(c0), "r"(c1), "r"(c2), "r"(c3) : "memory");
}

@ local staged_grad = false
@ for _, array in ipairs(arrays) do staged_grad = staged_grad or array.staged_grad end
@ if staged_grad then
// Adds floats to those of the tensor, in no order; elements outside it are left out.
__device__ __forceinline__ void tma_add_4d(const void *map, u32 src, int c0, int c1, int c2, int c3) {
    asm volatile("cp.reduce.async.bulk.tensor.4d.global.shared::cta.add.bulk_group [%0, {%2, %3, %4, %5}], [%1];"
                 ::"l"(map), "r"(src), "r"(c0), "r"(c1), "r"(c2), "r"(c3) : "memory");
}

@ end
__device__ __forceinline__ void tma_store_commit() { asm volatile("cp.async.bulk.commit_group;" ::: "memory"); }

// Waits until all but the thread's last N committed stores have read their shared memory, which may then be overwritten.
template <int N> __device__ __forceinline__ void tma_store_wait_read() {
    asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(N) : "memory");
}

@ local adds = plan.adders or plan.head_rows > 0
@ if adds or problem.op == "fwd" and (layout.out_panels > 0 or plan.q_stages == 2) then
// Waits until all but the thread's last N committed stores and adds are done: written, not only read.
template <int N> __device__ __forceinline__ void tma_store_wait() {
    asm volatile("cp.async.bulk.wait_group %0;" ::"n"(N) : "memory");
}

@ end
@ if adds then
// Puts the thread's copies and adds to global memory that follow behind what it has seen of other threads'.
__device__ __forceinline__ void fence_proxy_async_global() { asm volatile("fence.proxy.async.global;" ::: "memory"); }

@ end
// Makes the thread's writes to shared memory known to TMA and wgmma, which see it through another proxy.
__device__ __forceinline__ void fence_proxy_async() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }
