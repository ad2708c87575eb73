__device__ __forceinline__ uint4 ld_global_v4(const void *p) {
    uint4 v;
    asm volatile("ld.global.nc.v4.u32 {%0, %1, %2, %3}, [%4];" : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "l"(p));
    return v;
}

__device__ __forceinline__ void st_global_v4(void *p, uint4 v) {
    asm volatile("st.global.v4.u32 [%0], {%1, %2, %3, %4};" ::"l"(p), "r"(v.x), "r"(v.y), "r"(v.z), "r"(v.w) : "memory");
}
@ if plan.head_rows > 0 then

// Brings the 128 bytes about p to the L2 cache.
__device__ __forceinline__ void prefetch_l2(const void *p) { asm volatile("prefetch.global.L2 [%0];" ::"l"(p)); }
@ end
@ if walk == "q" and (plan.adders or plan.family == "mma" and arch.early_start) then

// What other blocks wrote before they wrote this is there behind it.
__device__ __forceinline__ u32 ld_acquire_u32(const u32 *p) {
    u32 v;
    asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(v) : "l"(p) : "memory");
    return v;
}
@ end
@ local reads_pairs = plan.widens or plan.widens_before
@ for _, array in ipairs(arrays) do reads_pairs = reads_pairs or array.key_pairs and array.bytes == 4 and plan.family == "wgmma" and walk == "k" end
@ if reads_pairs then

// The 8 bytes at p, here and not where they are needed.
__device__ __forceinline__ uint2 ld_global_pair(const void *p) {
    uint2 v;
    asm volatile("ld.global.nc.v2.u32 {%0, %1}, [%2];" : "=r"(v.x), "=r"(v.y) : "l"(p));
    return v;
}
@ end
@ if #arrays > 0 then

// The 4 bytes that lie i strides (of bytes) behind base, in memory that the kernel does not write. From C the compiler makes seven
// instructions of the address, since it takes the stride's sign out of the loop and the product for one of 64 bits.
__device__ __forceinline__ u32 ld_global_at(const void *base, int i, int stride) {
    u32 v;
    asm("{ .reg .b64 a; mad.wide.s32 a, %1, %2, %3; ld.global.nc.u32 %0, [a]; }" : "=r"(v) : "r"(i), "r"(stride), "l"(base));
    return v;
}
@   local halves, key_pairs, key_words = false, false, false
@   for _, array in ipairs(arrays) do
@     halves = halves or array.bytes == 2
@     key_pairs, key_words = key_pairs or array.key_pairs and array.bytes == 4, key_words or array.key_pairs and array.bytes == 2
@   end
@   if halves then

// 2 bytes likewise, in the lower half.
__device__ __forceinline__ u32 ld_global_half_at(const void *base, int i, int stride) {
    u32 v;
    asm("{ .reg .b64 a; mad.wide.s32 a, %1, %2, %3; ld.global.nc.u16 %0, [a]; }" : "=r"(v) : "r"(i), "r"(stride), "l"(base));
    return v;
}
@   end
@   if key_pairs and plan.family == "wgmma" and walk == "k" then

// Elements i and i + 1 of 4 bytes, aligned to 8 bytes.
__device__ __forceinline__ uint2 ld_global_pair_at(const void *base, int i) {
    uint2 v;
    asm("{ .reg .b64 a; mad.wide.s32 a, %2, 4, %3; ld.global.nc.v2.u32 {%0, %1}, [a]; }" : "=r"(v.x), "=r"(v.y) : "r"(i), "l"(base));
    return v;
}
@   end
@   if key_words and plan.family == "wgmma" and walk == "k" then

// Elements i and i + 1 of 2 bytes, aligned to 4 bytes.
__device__ __forceinline__ u32 ld_global_word_at(const void *base, int i) {
    u32 v;
    asm("{ .reg .b64 a; mad.wide.s32 a, %1, 2, %2; ld.global.nc.u32 %0, [a]; }" : "=r"(v) : "r"(i), "l"(base));
    return v;
}

// The 4 bytes at p, here and not where they are needed.
__device__ __forceinline__ u32 ld_global_word(const void *p) {
    u32 v;
    asm volatile("ld.global.nc.u32 %0, [%1];" : "=r"(v) : "l"(p));
    return v;
}
@   end
@ end
@ if problem.op == "bwd" then

@   if score.grads and problem.deterministic then
__device__ __forceinline__ void red_add_u64(u64 *p, u64 v) {
    asm volatile("red.global.add.u64 [%0], %1;" ::"l"(p), "l"(v) : "memory");
}

@   end
@   local adds_floats, adds_dq = score.grads and not problem.deterministic, not plan.dq_kernel
@   if plan.family == "wgmma" then adds_dq = plan.q_stages == 0 end
@   if adds_floats or adds_dq then
// Adds to global memory, in no order.
@   end
@   if adds_floats or adds_dq and not arch.vector_add then
__device__ __forceinline__ void red_add_f32(float *p, float v) {
    asm volatile("red.global.add.f32 [%0], %1;" ::"l"(p), "f"(v) : "memory");
}
@   end
@   if (adds_dq or adds_floats and plan.family == "wgmma") and arch.vector_add then
__device__ __forceinline__ void red_add_f32x4(float *p, const float (&v)[4]) {
    asm volatile("red.global.add.v4.f32 [%0], {%1, %2, %3, %4};" ::"l"(p), "f"(v[0]), "f"(v[1]), "f"(v[2]), "f"(v[3]) : "memory");
}
@   end
@ end
