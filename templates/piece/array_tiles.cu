// Tiles of $(staged.array.name): each warpgroup has a buffer of its own for its rows, in panels of $(128 // staged.array.bytes) keys, so that none waits for the others.
constexpr u32 smem_array = $(layout.array), array_bytes = $(layout.array_bytes), array_full = $(layout.array_bars), array_empty = array_full + 8 * consumers;

__device__ __forceinline__ void init_array_barriers(u32 smem) {
    for (int i = 0; i < consumers; ++i) {
        mbarrier_init(smem + array_full + 8 * i, 1);
        mbarrier_init(smem + array_empty + 8 * i, 4);
    }
}

struct ArrayTiles {
    const Params &p;
    const u32 smem;
    u32 parity = 1; // of the buffers, which are filled in turn

    __device__ __forceinline__ ArrayTiles(const Params &p_, u32 smem_) : p(p_), smem(smem_) {}

    // Sends tile n, to each warpgroup when it has room.
    __device__ __forceinline__ void send(const Where &at, int n) {
#pragma unroll 1
        for (int group = 0; group < consumers; ++group) {
            const u32 tile = smem + smem_array + group * array_bytes, bar = smem + array_full + 8 * group;
            const int q = at.q_first + 64 * group;
            mbarrier_wait(smem + array_empty + 8 * group, parity);
            if (elect_lane()) {
                if (p.array[$(staged.slot)].boxed) {
                    mbarrier_arrive_expect_tx(bar, array_bytes);
#pragma unroll
                    for (int i = 0; i < $(layout.array_bytes // 8192); ++i)
                        tma_load_4d(tile + i * 8192, &p.map_array, bar, $(plan.halved and "own_half(n) * half_n" or "tile_key(at, n)") + $(128 // staged.array.bytes) * i, q, $(staged.entry("array", "h")), $(staged.entry("array", "b")));
                } else {
                    mbarrier_arrive(bar); // consumers read it themselves
                }
            }
        }
        parity ^= 1;
    }
};
