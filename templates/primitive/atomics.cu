// Atomic operations on global memory, between all blocks of a GPU.
@ if walk == "k" then
__device__ __forceinline__ u64 ld_acquire_u64(const u64 *p) {
    u64 v;
    asm volatile("ld.acquire.gpu.global.u64 %0, [%1];" : "=l"(v) : "l"(p) : "memory");
    return v;
}

__device__ __forceinline__ void st_release_u64(u64 *p, u64 v) {
    asm volatile("st.release.gpu.global.u64 [%0], %1;" ::"l"(p), "l"(v) : "memory");
}

// Writes two words, from a multiple of 16 bytes, where two others are, at once.
__device__ __forceinline__ void cas_u64x2(u64 *p, u64 expected_0, u64 expected_1, u64 desired_0, u64 desired_1) {
    asm volatile("{\n"
                 ".reg .b128 old, expected, desired;\n"
                 "mov.b128 expected, {%1, %2};\n"
                 "mov.b128 desired, {%3, %4};\n"
                 "atom.acq_rel.gpu.global.cas.b128 old, [%0], expected, desired;\n"
                 "}" ::"l"(p), "l"(expected_0), "l"(expected_1), "l"(desired_0), "l"(desired_1) : "memory");
}

@   if plan.sides then
// Of the SM that the block runs on.
__device__ __forceinline__ u32 sm_id() {
    u32 id;
    asm("mov.u32 %0, %%smid;" : "=r"(id));
    return id;
}

@   end
@ elseif plan.adders then
// What the thread has seen of other threads' writes to global memory comes before it as its own do.
__device__ __forceinline__ void st_release_u32(u32 *p, u32 v) {
    asm volatile("st.release.gpu.global.u32 [%0], %1;" ::"l"(p), "r"(v) : "memory");
}

@ end
// Adds 1, or wraps from `limit` to 0; returns what was there.
__device__ __forceinline__ u32 atom_inc_u32(u32 *p, u32 limit) {
    u32 old;
    asm volatile("atom.global.inc.u32 %0, [%1], %2;" : "=r"(old) : "l"(p), "r"(limit) : "memory");
    return old;
}
