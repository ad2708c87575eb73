// Drops from weights of 8 bits, operand A of m64nNk32, of block (m, n): p[r] has columns 2t, 2t + 1, 2t + 8 and 2t + 9 of row half r,
// as piece/values.cu orders keys.
__device__ __forceinline__ void drop_bytes(const Dropout<false> &dropout, u32 (&p)[2], int m, int n) {
    u32 w[2];
    dropout.signs(w, m, n);
#pragma unroll
    for (int r = 0; r < 2; ++r) p[r] &= byte_permute(w[0], w[1], 0xeac8u + 0x1111u * r);
}
