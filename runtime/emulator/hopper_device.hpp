/* The second body of the primitives that sm_90a has: mbarriers, box copies, wgmma, named barriers. */

inline void mbarrier_init(unsigned int bar, unsigned int arrivals) {
    fk_emu_engine->mbarrier_init(bar, arrivals);
}
inline void mbarrier_init_fence() {}
inline void mbarrier_arrive(unsigned int bar) {
    fk_emu_engine->mbarrier_arrive(bar, 0);
}
inline void mbarrier_arrive_expect_tx(unsigned int bar, unsigned int bytes) {
    fk_emu_engine->mbarrier_arrive(bar, bytes);
}
inline void mbarrier_wait(unsigned int bar, unsigned int parity) {
    fk_emu_engine->mbarrier_wait(bar, parity);
}

inline bool elect_lane() {
    return threadIdx.x % 32 == 0;
}
inline void tma_prefetch_map(const void *) {}
inline void prefetch_l2(const void *) {}
inline void tma_load_4d(unsigned int dst, const void *map, unsigned int bar, int c0, int c1, int c2, int c3) {
    const int at[] = {c0, c1, c2, c3};
    fk_emu_engine->tma_load(dst, map, bar, at, 4);
}
inline void tma_store_4d(const void *map, unsigned int src, int c0, int c1, int c2, int c3) {
    const int at[] = {c0, c1, c2, c3};
    fk_emu_engine->tma_store(map, src, at, 4);
}
inline void tma_add_4d(const void *map, unsigned int src, int c0, int c1, int c2, int c3) {
    const int at[] = {c0, c1, c2, c3};
    fk_emu_engine->tma_add(map, src, at, 4);
}
inline void bulk_load(unsigned int dst, const void *src, unsigned int bytes, unsigned int bar) {
    fk_emu_engine->bulk_load(dst, src, bytes, bar);
}

#define __cluster_dims__(x, y, z)
/* A shared address of another CTA of the cluster has the number of that CTA, from 1, in its highest byte. */
inline unsigned int cluster_rank() {
    return fk_emu_self()->cluster_rank;
}
inline unsigned int cluster_map(unsigned int addr, unsigned int rank) {
    return (rank + 1) << 24 | addr;
}
inline void cluster_sync() {
    fk_emu_engine->cluster_sync();
}
inline void cluster_arrive(unsigned int bar) {
    fk_emu_engine->mbarrier_arrive(bar, 0);
}
inline void cluster_publish(unsigned int bar) {
    fk_emu_engine->mbarrier_arrive(bar, 0);
}
inline void cluster_wait(unsigned int bar, unsigned int parity) {
    fk_emu_engine->mbarrier_wait(bar, parity);
}
inline void cluster_store_u32(unsigned int addr, unsigned int value) {
    st_shared_u32(addr, value);
}
inline void cluster_send_v4(unsigned int addr, uint4 x, unsigned int bar) {
    fk_emu_engine->cluster_send_v4(addr, &x, bar);
}
inline void cluster_copy(unsigned int dst, unsigned int src, unsigned int bytes, unsigned int bar) {
    fk_emu_engine->cluster_copy(dst, src, bytes, bar);
}
inline void tma_multicast_4d(unsigned int dst, const void *map, unsigned int bar, int c0, int c1, int c2, int c3,
                             unsigned int ctas) {
    const int at[] = {c0, c1, c2, c3};
    for (unsigned int rank = 0; ctas >> rank; ++rank)
        if (ctas >> rank & 1) fk_emu_engine->tma_load(cluster_map(dst, rank), map, cluster_map(bar, rank), at, 4);
}
inline void bulk_store(void *dst, unsigned int src, unsigned int bytes) {
    fk_emu_engine->bulk_store(dst, src, bytes);
}
inline void bulk_add_f32(float *dst, unsigned int src, unsigned int bytes) {
    fk_emu_engine->bulk_add_f32(dst, src, bytes);
}
inline void tma_store_commit() {
    fk_emu_engine->tma_store_commit();
}
template <int N> inline void tma_store_wait_read() {
    fk_emu_engine->tma_store_wait(N);
}
template <int N> inline void tma_store_wait() {
    fk_emu_engine->tma_store_wait(N);
}
inline void fence_proxy_async() {}
inline void fence_proxy_async_global() {}

inline void named_barrier_sync(unsigned int id, unsigned int threads) {
    fk_emu_engine->named_barrier(id, threads, 1);
}
inline void named_barrier_arrive(unsigned int id, unsigned int threads) {
    fk_emu_engine->named_barrier(id, threads, 0);
}
template <int N> inline void setmaxnreg_dec() {
    fk_emu_engine->setmaxnreg(N);
}
template <int N> inline void setmaxnreg_inc() {
    fk_emu_engine->setmaxnreg(N);
}

inline unsigned int wgmma_word(unsigned int addr, unsigned int leading) {
    return (leading >> 4 & 0x3fff) << 16 | (addr & 0x3ffff) >> 4;
}
template <int SWIZZLE> inline unsigned long long wgmma_descriptor(unsigned int word, unsigned int stride) {
    static_assert(SWIZZLE == 128 || SWIZZLE == 64 || SWIZZLE == 32 || SWIZZLE == 0,
                  "swizzles of 128, 64 and 32 bytes, or none");
    constexpr unsigned long long layout = SWIZZLE == 128 ? 1 : SWIZZLE == 64 ? 2 : SWIZZLE == 32 ? 3 : 0;
    return layout << 62 | (unsigned long long)(stride >> 4) << 32 | word;
}
template <int SWIZZLE>
inline unsigned long long wgmma_descriptor(unsigned int addr, unsigned int leading, unsigned int stride) {
    return wgmma_descriptor<SWIZZLE>(wgmma_word(addr, leading), stride);
}
/* The registers are memory whose address the engine has: the compiler reads them again after each call anyway. */
template <int N> inline void wgmma_wait() {
    fk_emu_engine->wgmma_wait(N);
}
template <int N, int R> inline void wgmma_wait(float (&)[R]) {
    fk_emu_engine->wgmma_wait(N);
}

/* Where step j of the depth begins, in the descriptors' units (templates/primitive/wgmma.cu). */
constexpr unsigned long long wgmma_step(int rows, int j) {
    return rows == 0 ? j * (16 * 128 / 16) : (j / 4 * (rows * 128) + j % 4 * 32) / 16;
}
/* A of the first STEPS steps is in registers, of the others in shared memory. One more has tiles of its own, `line`. */
template <int STEPS, int ROWS_A, int ROWS_B, int R>
inline void fk_emu_wgmma_product(float (&acc)[R], const unsigned int (*held)[4], unsigned long long a,
                                 unsigned long long b, bool accumulate, int element, int steps,
                                 unsigned long long line_a = 0, unsigned long long line_b = 0) {
    for (int j = 0; j < steps; ++j) {
        const bool shared = j >= STEPS;
        const fk_emu_wgmma product = {acc,
                                      R,
                                      shared ? nullptr : held[j],
                                      shared ? a + wgmma_step(ROWS_A, j) : 0,
                                      b + wgmma_step(ROWS_B, j),
                                      shared && ROWS_A == 0,
                                      ROWS_B == 0,
                                      element,
                                      accumulate || j > 0};
        fk_emu_engine->wgmma(&product);
    }
    const fk_emu_wgmma line = {acc, R, nullptr, line_a, line_b, 0, 0, element, 1};
    if (line_b) fk_emu_engine->wgmma(&line);
    fk_emu_engine->wgmma_commit();
}

/* A name for each depth and type, as the text has them; without `accumulate` the product is the accumulator. */
#define FK_EMU_WGMMA(depth, dtype, element)                                                                            \
    template <int ROWS_A, int ROWS_B, int R>                                                                           \
    inline void wgmma_m64k##depth##_##dtype(float(&acc)[R], unsigned long long a, unsigned long long b,                \
                                            bool accumulate = false) {                                                 \
        constexpr int steps = depth / (element == FK_EMU_E4M3 ? 32 : 16);                                              \
        fk_emu_wgmma_product<0, ROWS_A, ROWS_B>(acc, nullptr, a, b, accumulate, element, steps);                       \
    }                                                                                                                  \
    template <int ROWS_B, int R>                                                                                       \
    inline void wgmma_m64k##depth##_##dtype(float(&acc)[R],                                                            \
                                            const unsigned int(&a)[depth / (element == FK_EMU_E4M3 ? 32 : 16)][4],     \
                                            unsigned long long b, bool accumulate = false) {                           \
        constexpr int steps = depth / (element == FK_EMU_E4M3 ? 32 : 16);                                              \
        fk_emu_wgmma_product<steps, 0, ROWS_B>(acc, a, 0, b, accumulate, element, steps);                              \
    }                                                                                                                  \
    template <int ROWS_A, int ROWS_B, int R>                                                                           \
    inline void wgmma_m64k##depth##_##dtype(float(&acc)[R], unsigned long long a, unsigned long long b,                \
                                            unsigned long long line_a, unsigned long long line_b) {                    \
        constexpr int steps = depth / (element == FK_EMU_E4M3 ? 32 : 16);                                              \
        fk_emu_wgmma_product<0, ROWS_A, ROWS_B>(acc, nullptr, a, b, false, element, steps, line_a, line_b);            \
    }                                                                                                                  \
    template <int ROWS_B, int R>                                                                                       \
    inline void wgmma_m64k##depth##_##dtype(                                                                           \
        float(&acc)[R], const unsigned int(&a)[depth / (element == FK_EMU_E4M3 ? 32 : 16)][4], unsigned long long b,   \
        unsigned long long line_a, unsigned long long line_b) {                                                        \
        constexpr int steps = depth / (element == FK_EMU_E4M3 ? 32 : 16);                                              \
        fk_emu_wgmma_product<steps, 0, ROWS_B>(acc, a, 0, b, false, element, steps, line_a, line_b);                   \
    }                                                                                                                  \
    template <int ROWS_A, int ROWS_B, int R, int STEPS>                                                                \
    inline void wgmma_m64k##depth##_##dtype(float(&acc)[R], const unsigned int(&held)[STEPS][4], unsigned long long a, \
                                            unsigned long long b) {                                                    \
        constexpr int steps = depth / (element == FK_EMU_E4M3 ? 32 : 16);                                              \
        fk_emu_wgmma_product<STEPS, ROWS_A, ROWS_B>(acc, held, a, b, false, element, steps);                           \
    }
#define FK_EMU_WGMMA_DEPTH(depth) FK_EMU_WGMMA(depth, fp16, FK_EMU_FP16) FK_EMU_WGMMA(depth, bf16, FK_EMU_BF16)
FK_EMU_WGMMA_DEPTH(16)
FK_EMU_WGMMA_DEPTH(32)
FK_EMU_WGMMA_DEPTH(48)
FK_EMU_WGMMA_DEPTH(64)
FK_EMU_WGMMA_DEPTH(80)
FK_EMU_WGMMA_DEPTH(96)
FK_EMU_WGMMA_DEPTH(112)
FK_EMU_WGMMA_DEPTH(128)
FK_EMU_WGMMA_DEPTH(144)
FK_EMU_WGMMA_DEPTH(160)
FK_EMU_WGMMA_DEPTH(176)
FK_EMU_WGMMA_DEPTH(192)
FK_EMU_WGMMA_DEPTH(208)
FK_EMU_WGMMA_DEPTH(224)
FK_EMU_WGMMA_DEPTH(240)
FK_EMU_WGMMA_DEPTH(256)
FK_EMU_WGMMA_DEPTH(288)
#undef FK_EMU_WGMMA_DEPTH
FK_EMU_WGMMA(32, e4m3, FK_EMU_E4M3)
FK_EMU_WGMMA(64, e4m3, FK_EMU_E4M3)
FK_EMU_WGMMA(96, e4m3, FK_EMU_E4M3)
FK_EMU_WGMMA(128, e4m3, FK_EMU_E4M3)
FK_EMU_WGMMA(160, e4m3, FK_EMU_E4M3)
FK_EMU_WGMMA(192, e4m3, FK_EMU_E4M3)
FK_EMU_WGMMA(224, e4m3, FK_EMU_E4M3)
FK_EMU_WGMMA(256, e4m3, FK_EMU_E4M3)
#undef FK_EMU_WGMMA

inline void stmatrix_x4(unsigned int addr, const unsigned int (&r)[4]) {
    const unsigned int lane = threadIdx.x % 32;
    for (unsigned int i = 0; i < 4; ++i)
        st_shared_u32(__shfl_sync(0xffffffffu, addr, (int)(8 * i + lane / 4)) + lane % 4 * 4, r[i]);
}
inline unsigned long long pair_f32(float lo, float hi) {
    return (unsigned long long)__float_as_uint(hi) << 32 | __float_as_uint(lo);
}

inline void unpair_f32(float &lo, float &hi, unsigned long long pair) {
    lo = __uint_as_float((unsigned int)pair);
    hi = __uint_as_float((unsigned int)(pair >> 32));
}

inline unsigned int spoil_fp16(unsigned int acc, unsigned int w) {
    for (unsigned int half = 0x7c00; half; half = half << 16)
        if ((w & half) == half) acc |= half | half >> 1;
    return acc;
}
inline unsigned int spoil_bf16(unsigned int acc, unsigned int w) {
    for (unsigned int half = 0x7f80; half; half = half << 16)
        if ((w & half) == half) acc |= half | half >> 1;
    return acc;
}
inline float rcp(float x) {
    return 1.0f / x;
}
