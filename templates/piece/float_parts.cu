// Lane = 4 g + t. Operand A of m16n8k16: rows g and g + 8 at depths 2 t and 2 t + 1, then both at depths 8 more. Operand B: column g
// at depths 2 t and 2 t + 1, then 8 more.$(plan.parted and "" or " As a sum over the depth has no order, depths 2 t and 2 t + 1 may stand for t and t + 4, in A\n// and B alike.")
template <int N> struct Split {
    u32 part[3][N];
    __device__ __forceinline__ void set(int i, float x, float y) {
#pragma unroll
        for (int n = 0; n < 3; ++n) {
            const u32 pair = part[n][i] = pack_bf16(x, y);
            x -= __uint_as_float(pair << 16);
            y -= __uint_as_float(pair & 0xffff0000u);
        }
    }
    __device__ __forceinline__ void set(int i, u32 x, u32 y) { set(i, __uint_as_float(x), __uint_as_float(y)); }
};
@ if plan.parted then

// A tile is three, one of each part, which tile_offset takes for tiles of half as many floats.
template <int ROWS, int COLS> constexpr u32 part_bytes = ROWS * COLS * 2;

// Four floats of a tile; to: where their first parts go.
template <int ROWS, int COLS> __device__ __forceinline__ void store_parts(u32 to, const uint4 &x) {
    Split<2> four;
    four.set(0, x.x, x.y);
    four.set(1, x.z, x.w);
#pragma unroll
    for (int n = 0; n < 3; ++n) st_shared_v2(to + n * part_bytes<ROWS, COLS>, four.part[n][0], four.part[n][1]);
}
@ end
