// acc += A B by a warpgroup: 64 x 16 times 16 x N, fp32 accumulation; N = 2 * registers of acc. `wgmma_widths` lists the N.
// Warp w holds rows 16 w to 16 w + 15 of acc, lane = 4 g + t of it row g in acc[4 j], acc[4 j + 1] (columns 8 j + 2 t and the
// next) and row g + 8 in acc[4 j + 2], acc[4 j + 3].
@ local element = problem.dtype == "fp16" and "f16" or "bf16"

// Where an operand with rows of SWIZZLE bytes starts in shared memory. K-major: `stride` is the distance of 8 rows, and
// `leading` is not used. Otherwise (transposed; 128 only): `stride` is the distance of 8 k, `leading` of 64 rows.
template <int SWIZZLE> __device__ __forceinline__ u64 wgmma_descriptor(u32 addr, u32 leading, u32 stride) {
    static_assert(SWIZZLE == 128 || SWIZZLE == 64 || SWIZZLE == 32, "swizzles of 128, 64 and 32 bytes");
    constexpr u64 layout = SWIZZLE == 128 ? 1 : SWIZZLE == 64 ? 2 : 3;
    return layout << 62 | (u64)(stride >> 4) << 32 | (u64)(leading >> 4 & 0x3fff) << 16 | (addr & 0x3ffff) >> 4;
}

// Before the first product, and again where registers of acc or A have been written since.
__device__ __forceinline__ void wgmma_fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }

__device__ __forceinline__ void wgmma_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }

// Waits until at most N committed groups are in flight. Accumulators that this releases must go through wgmma_release.
template <int N> __device__ __forceinline__ void wgmma_wait() {
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(N) : "memory");
}

// Keeps the compiler from moving uses of acc above the wait before.
template <int R> __device__ __forceinline__ void wgmma_release(float (&acc)[R]) {
#pragma unroll
    for (int i = 0; i < R; ++i)
        asm volatile("" : "+f"(acc[i])::"memory");
}
@ -- The registers of acc as operands of the instruction, and as arguments of the asm statement, four from i on.
@ local function operands(i, r)
@   return ("%%%d, %%%d, %%%d, %%%d"):format(i, i + 1, i + 2, i + 3) .. (i + 4 < r and ", " or "}, ")
@ end
@ local function arguments(i, r)
@   local four = {}
@   for j = i, i + 3 do
@     four[#four + 1] = ('"+f"(acc[%d])'):format(j)
@   end
@   return table.concat(four, ", ") .. (i + 4 < r and "," or "")
@ end
@ for _, n in ipairs(wgmma_widths) do
@   local r = n // 2
@   if problem.dtype == "e4m3" then

// As below, with 32 elements of 8 bits in the depth; both operands K-major.
__device__ __forceinline__ void wgmma_m64k32_e4m3(float (&acc)[$(r)], u64 a, u64 b, bool accumulate) {
    asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %$(r + 2), 0;\n"
                 "wgmma.mma_async.sync.aligned.m64n$(n)k32.f32.e4m3.e4m3 {"
@     for i = 0, r - 1, 4 do
                 "$(operands(i, r))"
@     end
                 "%$(r), %$(r + 1), p, 1, 1;\n}"
                 :
@     for i = 0, r - 1, 4 do
                 $(arguments(i, r))
@     end
                 : "l"(a), "l"(b), "r"((int)accumulate) : "memory");
}

// A from registers, in the layout of mma_m16n8k32: columns 4 t to 4 t + 3 of 16 in a[0] (row g) and a[1] (row g + 8), the next 16
// in a[2] and a[3].
__device__ __forceinline__ void wgmma_m64k32_e4m3(float (&acc)[$(r)], const u32 (&a)[4], u64 b, bool accumulate) {
    asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %$(r + 5), 0;\n"
                 "wgmma.mma_async.sync.aligned.m64n$(n)k32.f32.e4m3.e4m3 {"
@     for i = 0, r - 1, 4 do
                 "$(operands(i, r))"
@     end
                 "{%$(r), %$(r + 1), %$(r + 2), %$(r + 3)}, %$(r + 4), p, 1, 1;\n}"
                 :
@     for i = 0, r - 1, 4 do
                 $(arguments(i, r))
@     end
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"((int)accumulate) : "memory");
}
@   else

// A and B from shared memory. Without `accumulate`, acc = A B. TRANS_A, TRANS_B: 0 K-major, 1 transposed.
template <int TRANS_A, int TRANS_B>
__device__ __forceinline__ void wgmma_m64k16_$(problem.dtype)(float (&acc)[$(r)], u64 a, u64 b, bool accumulate) {
    asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %$(r + 2), 0;\n"
                 "wgmma.mma_async.sync.aligned.m64n$(n)k16.f32.$(element).$(element) {"
@   for i = 0, r - 1, 4 do
                 "$(operands(i, r))"
@   end
                 "%$(r), %$(r + 1), p, 1, 1, %$(r + 3), %$(r + 4);\n}"
                 :
@   for i = 0, r - 1, 4 do
                 $(arguments(i, r))
@   end
                 : "l"(a), "l"(b), "r"((int)accumulate), "n"(TRANS_A), "n"(TRANS_B) : "memory");
}

// A from registers, in the layout of mma_m16n8k16.
template <int TRANS_B>
__device__ __forceinline__ void wgmma_m64k16_$(problem.dtype)(float (&acc)[$(r)], const u32 (&a)[4], u64 b, bool accumulate) {
    asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %$(r + 5), 0;\n"
                 "wgmma.mma_async.sync.aligned.m64n$(n)k16.f32.$(element).$(element) {"
@   for i = 0, r - 1, 4 do
                 "$(operands(i, r))"
@   end
                 "{%$(r), %$(r + 1), %$(r + 2), %$(r + 3)}, %$(r + 4), p, 1, 1, %$(r + 6);\n}"
                 :
@   for i = 0, r - 1, 4 do
                 $(arguments(i, r))
@   end
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"((int)accumulate), "n"(TRANS_B) : "memory");
}
@   end
@ end
