// The CTAs of a cluster run side by side, and reach each other's shared memory at addresses that cluster_map gives.
__device__ __forceinline__ u32 cluster_rank() {
    u32 rank;
    asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
    return rank;
}

// Where what the own CTA has at `addr` lies in CTA `rank`.
__device__ __forceinline__ u32 cluster_map(u32 addr, u32 rank) {
    u32 mapped;
    asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(mapped) : "r"(addr), "r"(rank));
    return mapped;
}

// Waits for all threads of the cluster; what they wrote is seen.
__device__ __forceinline__ void cluster_sync() {
    asm volatile("barrier.cluster.arrive.release;\nbarrier.cluster.wait.acquire;" ::: "memory");
}

// An arrival at another CTA's mbarrier, which may then overwrite what has been read.
__device__ __forceinline__ void cluster_arrive(u32 bar) {
    asm volatile("mbarrier.arrive.shared::cluster.b64 _, [%0];" ::"r"(bar) : "memory");
}

// An arrival that shows the other CTA what the thread wrote before, to global memory, too; and a wait that sees it.
__device__ __forceinline__ void cluster_publish(u32 bar) {
    asm volatile("mbarrier.arrive.release.cluster.shared::cluster.b64 _, [%0];" ::"r"(bar) : "memory");
}

__device__ __forceinline__ void cluster_wait(u32 bar, u32 parity) {
    u32 done;
    do {
        asm volatile("{\n.reg .pred p;\n"
                     "mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 p, [%1], %2;\n"
                     "selp.u32 %0, 1, 0, p;\n}"
                     : "=r"(done) : "r"(bar), "r"(parity) : "memory");
    } while (!done);
}

__device__ __forceinline__ void cluster_store_u32(u32 addr, u32 value) {
    asm volatile("st.shared::cluster.u32 [%0], %1;" ::"r"(addr), "r"(value) : "memory");
}

@ if plan.halved then
// Sends 16 bytes to another CTA, whose mbarrier counts them: who waits for it sees them.
__device__ __forceinline__ void cluster_send_v4(u32 addr, uint4 x, u32 bar) {
    asm volatile("st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v4.b32 [%0], {%1, %2, %3, %4}, [%5];"
                 ::"r"(addr), "r"(x.x), "r"(x.y), "r"(x.z), "r"(x.w), "r"(bar) : "memory");
}

@ end
// Copies to another CTA, whose mbarrier counts the bytes (a multiple of 16); src is the own CTA's.
__device__ __forceinline__ void cluster_copy(u32 dst, u32 src, u32 bytes, u32 bar) {
    asm volatile("cp.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];"
                 ::"r"(dst), "r"(src), "r"(bytes), "r"(bar) : "memory");
}

// tma_load_4d to the same place, and counted by the same mbarrier, of each CTA whose bit is set in `ctas`.
__device__ __forceinline__ void tma_multicast_4d(u32 dst, const void *map, u32 bar, int c0, int c1, int c2, int c3, u32 ctas) {
    asm volatile("cp.async.bulk.tensor.4d.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster "
                 "[%0], [%1, {%3, %4, %5, %6}], [%2], %7;"
                 ::"r"(dst), "l"(map), "r"(bar), "r"(c0), "r"(c1), "r"(c2), "r"(c3), "h"((u16)ctas) : "memory");
}
