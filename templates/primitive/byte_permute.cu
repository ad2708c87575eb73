// Byte n of the result is byte s % 8 of {b, a}, where s is nibble n of the selector; with 8 in the nibble, that byte's
// highest bit in all its bits. (__byte_perm ignores the 8.)
__device__ __forceinline__ u32 byte_permute(u32 a, u32 b, u32 selector) {
    u32 r;
    asm("prmt.b32 %0, %1, %2, %3;" : "=r"(r) : "r"(a), "r"(b), "r"(selector));
    return r;
}
