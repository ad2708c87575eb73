// `width` ones from bit `start` on, those of them that a word has: bmsk.
__device__ __forceinline__ u32 bit_mask(int start, int width) {
    u32 r;
    asm("bmsk.clamp.b32 %0, %1, %2;" : "=r"(r) : "r"(start), "r"(width));
    return r;
}
