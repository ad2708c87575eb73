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
inline void tma_load_3d(unsigned int dst, const void *map, unsigned int bar, int c0, int c1, int c2) {
    const int at[] = {c0, c1, c2};
    fk_emu_engine->tma_load(dst, map, bar, at, 3);
}
inline void tma_load_4d(unsigned int dst, const void *map, unsigned int bar, int c0, int c1, int c2, int c3) {
    const int at[] = {c0, c1, c2, c3};
    fk_emu_engine->tma_load(dst, map, bar, at, 4);
}
inline void tma_store_3d(const void *map, unsigned int src, int c0, int c1, int c2) {
    const int at[] = {c0, c1, c2};
    fk_emu_engine->tma_store(map, src, at, 3);
}
inline void tma_store_4d(const void *map, unsigned int src, int c0, int c1, int c2, int c3) {
    const int at[] = {c0, c1, c2, c3};
    fk_emu_engine->tma_store(map, src, at, 4);
}
inline void tma_store_commit() {
    fk_emu_engine->tma_store_commit();
}
template <int N> inline void tma_store_wait_read() {
    fk_emu_engine->tma_store_wait(N);
}
inline void fence_proxy_async() {}

inline void named_barrier_sync(unsigned int id, unsigned int threads) {
    fk_emu_engine->named_barrier(id, threads, 1);
}
inline void named_barrier_arrive(unsigned int id, unsigned int threads) {
    fk_emu_engine->named_barrier(id, threads, 0);
}
template <int N> inline void setmaxnreg_dec() {}
template <int N> inline void setmaxnreg_inc() {}

template <int SWIZZLE>
inline unsigned long long wgmma_descriptor(unsigned int addr, unsigned int leading, unsigned int stride) {
    static_assert(SWIZZLE == 128 || SWIZZLE == 64 || SWIZZLE == 32, "swizzles of 128, 64 and 32 bytes");
    constexpr unsigned long long layout = SWIZZLE == 128 ? 1 : SWIZZLE == 64 ? 2 : 3;
    return layout << 62 | (unsigned long long)(stride >> 4) << 32 | (unsigned long long)(leading >> 4 & 0x3fff) << 16 |
           (addr & 0x3ffff) >> 4;
}
inline void wgmma_fence() {
    fk_emu_engine->wgmma_fence();
}
inline void wgmma_commit() {
    fk_emu_engine->wgmma_commit();
}
template <int N> inline void wgmma_wait() {
    fk_emu_engine->wgmma_wait(N);
}
/* The registers are memory whose address the engine has: the compiler reads them again after each call anyway. */
template <int R> inline void wgmma_release(float (&)[R]) {}

template <int TRANS_A, int TRANS_B, int R>
inline void fk_emu_wgmma_shared(float (&acc)[R], unsigned long long a, unsigned long long b, bool accumulate,
                                int element) {
    const fk_emu_wgmma product = {acc, R, nullptr, a, b, TRANS_A, TRANS_B, element, accumulate};
    fk_emu_engine->wgmma(&product);
}
template <int TRANS_B, int R>
inline void fk_emu_wgmma_registers(float (&acc)[R], const unsigned int *a, unsigned long long b, bool accumulate,
                                   int element) {
    const fk_emu_wgmma product = {acc, R, a, 0, b, 0, TRANS_B, element, accumulate};
    fk_emu_engine->wgmma(&product);
}
template <int TRANS_A, int TRANS_B, int R>
inline void wgmma_m64k16_bf16(float (&acc)[R], unsigned long long a, unsigned long long b, bool accumulate) {
    fk_emu_wgmma_shared<TRANS_A, TRANS_B>(acc, a, b, accumulate, FK_EMU_BF16);
}
template <int TRANS_A, int TRANS_B, int R>
inline void wgmma_m64k16_fp16(float (&acc)[R], unsigned long long a, unsigned long long b, bool accumulate) {
    fk_emu_wgmma_shared<TRANS_A, TRANS_B>(acc, a, b, accumulate, FK_EMU_FP16);
}
template <int TRANS_B, int R>
inline void wgmma_m64k16_bf16(float (&acc)[R], const unsigned int (&a)[4], unsigned long long b, bool accumulate) {
    fk_emu_wgmma_registers<TRANS_B>(acc, a, b, accumulate, FK_EMU_BF16);
}
template <int TRANS_B, int R>
inline void wgmma_m64k16_fp16(float (&acc)[R], const unsigned int (&a)[4], unsigned long long b, bool accumulate) {
    fk_emu_wgmma_registers<TRANS_B>(acc, a, b, accumulate, FK_EMU_FP16);
}
template <int R>
inline void wgmma_m64k32_e4m3(float (&acc)[R], unsigned long long a, unsigned long long b, bool accumulate) {
    fk_emu_wgmma_shared<0, 0>(acc, a, b, accumulate, FK_EMU_E4M3);
}
template <int R>
inline void wgmma_m64k32_e4m3(float (&acc)[R], const unsigned int (&a)[4], unsigned long long b, bool accumulate) {
    fk_emu_wgmma_registers<0>(acc, a, b, accumulate, FK_EMU_E4M3);
}

inline void stmatrix_x4(unsigned int addr, const unsigned int (&r)[4]) {
    const unsigned int lane = threadIdx.x % 32;
    for (unsigned int i = 0; i < 4; ++i)
        st_shared_u32(__shfl_sync(0xffffffffu, addr, (int)(8 * i + lane / 4)) + lane % 4 * 4, r[i]);
}
inline unsigned int spoil_bf16(unsigned int acc, unsigned int w) {
    for (unsigned int half = 0x7f80; half; half = half << 16)
        if ((w & half) == half) acc |= half | half >> 1;
    return acc;
}
inline float rcp(float x) {
    return 1.0f / x;
}
