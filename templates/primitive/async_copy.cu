// 16 bytes from global to shared memory, past the registers and L1; where not valid, 16 zero bytes and src is not read.
__device__ __forceinline__ void cp_async_16(u32 dst, const void *src, bool valid) {
    asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16, %2;" ::"r"(dst), "l"(src), "r"(valid ? 16 : 0) : "memory");
}

@ local staged = false
@ for _, array in ipairs(arrays) do staged = staged or array.staged end
@ if staged then
// 4 bytes.
__device__ __forceinline__ void cp_async_4(u32 dst, const void *src) {
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" ::"r"(dst), "l"(src) : "memory");
}

@ end
__device__ __forceinline__ void cp_async_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }

// Waits until at most N of the thread's committed groups are still in flight.
template <int N> __device__ __forceinline__ void cp_async_wait() {
    asm volatile("cp.async.wait_group %0;" ::"n"(N) : "memory");
}
