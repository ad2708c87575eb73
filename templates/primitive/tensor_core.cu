// c += a b on the tensor cores, 16x8x16, fp32 accumulation. Lane = 4 g + t holds rows g and g + 8 of c, columns 2t and 2t + 1.
@ if problem.dtype == "fp32" then
// Of parts of floats; the emulator truncates sums, as the hardware does.
__device__ __forceinline__ void mma_m16n8k16_parts(float (&c)[4], const u32 (&a)[4], u32 b0, u32 b1) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
                 "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
                 : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}
@ elseif arch.mma_k == 16 then
@   for _, dtype in ipairs({ { "fp16", "f16" }, { "bf16", "bf16" } }) do
@     if dtype[1] == plan.operands then
__device__ __forceinline__ void mma_m16n8k16_$(dtype[1])(float (&c)[4], const u32 (&a)[4], u32 b0, u32 b1) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.$(dtype[2]).$(dtype[2]).f32 "
                 "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
                 : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}
@     end
@   end
@ else
__device__ __forceinline__ void mma_m16n8k8_fp16(float (&c)[4], u32 a0, u32 a1, u32 b0) {
    asm("mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5}, {%6}, {%0, %1, %2, %3};"
                 : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
                 : "r"(a0), "r"(a1), "r"(b0));
}
@ end
