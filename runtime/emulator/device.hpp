/* CUDA as an emitted kernel sees it, for the host C++ compiler: read before the kernel's text. Everything here is thin,
 * since it is compiled with every kernel; the work is done by the engine, through a table of functions.
 * The primitives at the end are the second body of templates/primitive/ (same names, same signatures). */
#include "abi.hpp"

#define __global__
#define __device__
#define __host__
#define __grid_constant__
#define __launch_bounds__(...)
#define __forceinline__ inline
#define __noinline__ __attribute__((noinline))
#define __align__(n) alignas(n)

static const fk_emu_table *fk_emu_engine;

/* The same answer for the whole life of a thread, hence const: the compiler asks once per function. */
__attribute__((const, noinline)) static const fk_emu_thread *fk_emu_self() {
    return fk_emu_engine->self();
}
#define threadIdx (fk_emu_self()->thread_idx)
#define blockIdx (fk_emu_self()->block_idx)
#define blockDim (fk_emu_self()->block_dim)
#define gridDim (fk_emu_self()->grid_dim)
constexpr int warpSize = 32;

/* ---- vector types ------------------------------------------------------------------------------------- */

struct alignas(8) uint2 {
    unsigned int x, y;
};
struct alignas(8) int2 {
    int x, y;
};
struct alignas(8) float2 {
    float x, y;
};
struct alignas(16) uint4 {
    unsigned int x, y, z, w;
};
struct alignas(16) int4 {
    int x, y, z, w;
};
struct alignas(16) float4 {
    float x, y, z, w;
};
inline uint2 make_uint2(unsigned int x, unsigned int y) {
    return {x, y};
}
inline int2 make_int2(int x, int y) {
    return {x, y};
}
inline float2 make_float2(float x, float y) {
    return {x, y};
}
inline uint4 make_uint4(unsigned int x, unsigned int y, unsigned int z, unsigned int w) {
    return {x, y, z, w};
}
inline int4 make_int4(int x, int y, int z, int w) {
    return {x, y, z, w};
}
inline float4 make_float4(float x, float y, float z, float w) {
    return {x, y, z, w};
}

/* ---- bits and integers -------------------------------------------------------------------------------- */

template <class To, class From> inline To fk_emu_bits(From from) {
    static_assert(sizeof(To) == sizeof(From), "");
    To to;
    __builtin_memcpy(&to, &from, sizeof to);
    return to;
}
inline float __int_as_float(int x) {
    return fk_emu_bits<float>(x);
}
inline float __uint_as_float(unsigned int x) {
    return fk_emu_bits<float>(x);
}
inline int __float_as_int(float x) {
    return fk_emu_bits<int>(x);
}
inline unsigned int __float_as_uint(float x) {
    return fk_emu_bits<unsigned int>(x);
}

inline int __popc(unsigned int x) {
    return __builtin_popcount(x);
}
inline int __popcll(unsigned long long x) {
    return __builtin_popcountll(x);
}
inline int __ffs(int x) {
    return __builtin_ffs(x);
}
inline int __ffsll(long long x) {
    return __builtin_ffsll(x);
}
inline int __clz(int x) {
    return x ? __builtin_clz((unsigned int)x) : 32;
}
inline int __clzll(long long x) {
    return x ? __builtin_clzll((unsigned long long)x) : 64;
}
inline unsigned int __brev(unsigned int x) {
    x = (x >> 1 & 0x55555555u) | (x & 0x55555555u) << 1;
    x = (x >> 2 & 0x33333333u) | (x & 0x33333333u) << 2;
    x = (x >> 4 & 0x0f0f0f0fu) | (x & 0x0f0f0f0fu) << 4;
    return __builtin_bswap32(x);
}
inline unsigned int __umulhi(unsigned int a, unsigned int b) {
    return (unsigned int)((unsigned long long)a * b >> 32);
}

/* fminf and fmaxf return the other operand when one is a NaN. */
inline float fminf(float a, float b) {
    return a <= b || b != b ? a : b;
}
inline float fmaxf(float a, float b) {
    return a >= b || b != b ? a : b;
}
inline float fabsf(float x) {
    return __builtin_fabsf(x);
}

#define FK_EMU_MIN_MAX(type)                                                                                           \
    inline type min(type a, type b) {                                                                                  \
        return a < b ? a : b;                                                                                          \
    }                                                                                                                  \
    inline type max(type a, type b) {                                                                                  \
        return a > b ? a : b;                                                                                          \
    }
FK_EMU_MIN_MAX(int)
FK_EMU_MIN_MAX(unsigned int)
FK_EMU_MIN_MAX(long)
FK_EMU_MIN_MAX(unsigned long)
FK_EMU_MIN_MAX(long long)
FK_EMU_MIN_MAX(unsigned long long)
#undef FK_EMU_MIN_MAX
inline float min(float a, float b) {
    return fminf(a, b);
}
inline float max(float a, float b) {
    return fmaxf(a, b);
}
/* Wraps at the most negative value, as the device's does; the host's built-in would be undefined there. */
inline int fk_emu_abs(int x) {
    return x < 0 ? (int)(0u - (unsigned int)x) : x;
}
inline long long fk_emu_abs(long long x) {
    return x < 0 ? (long long)(0ull - (unsigned long long)x) : x;
}
inline long fk_emu_abs(long x) {
    return (long)fk_emu_abs((long long)x);
}
inline float fk_emu_abs(float x) {
    return __builtin_fabsf(x);
}
#define abs fk_emu_abs

extern "C" {
float expf(float) noexcept;
float exp2f(float) noexcept;
float logf(float) noexcept;
float log2f(float) noexcept;
float tanhf(float) noexcept;
float sqrtf(float) noexcept;
float fmaf(float, float, float) noexcept;
float floorf(float) noexcept;
float ceilf(float) noexcept;
}
inline float rsqrtf(float x) {
    return 1.0f / sqrtf(x);
}
inline float __fadd_rn(float a, float b) {
    return a + b;
}
inline float __fmul_rn(float a, float b) {
    return a * b;
}

/* ---- warp and block ----------------------------------------------------------------------------------- */

inline void __syncthreads() {
    fk_emu_engine->syncthreads(0);
}
inline int __syncthreads_or(int predicate) {
    return fk_emu_engine->syncthreads(predicate != 0);
}
inline void __syncwarp(unsigned int mask = 0xffffffffu) {
    fk_emu_engine->warp(FK_EMU_SYNCWARP, mask, 0, 0, 32);
}
inline unsigned int __ballot_sync(unsigned int mask, int predicate) {
    return fk_emu_engine->warp(FK_EMU_BALLOT, mask, predicate != 0, 0, 32);
}
inline int __any_sync(unsigned int mask, int predicate) {
    return (int)fk_emu_engine->warp(FK_EMU_ANY, mask, predicate != 0, 0, 32);
}
inline int __all_sync(unsigned int mask, int predicate) {
    return (int)fk_emu_engine->warp(FK_EMU_ALL, mask, predicate != 0, 0, 32);
}
/* int, unsigned int and float. */
template <class T> inline T fk_emu_shuffle(fk_emu_op op, unsigned int mask, T value, unsigned int lane, int width) {
    return fk_emu_bits<T>(fk_emu_engine->warp(op, mask, fk_emu_bits<unsigned int>(value), lane, (unsigned int)width));
}
template <class T> inline T __shfl_sync(unsigned int mask, T value, int lane, int width = 32) {
    return fk_emu_shuffle(FK_EMU_SHFL, mask, value, (unsigned int)lane, width);
}
template <class T> inline T __shfl_up_sync(unsigned int mask, T value, unsigned int delta, int width = 32) {
    return fk_emu_shuffle(FK_EMU_SHFL_UP, mask, value, delta, width);
}
template <class T> inline T __shfl_down_sync(unsigned int mask, T value, unsigned int delta, int width = 32) {
    return fk_emu_shuffle(FK_EMU_SHFL_DOWN, mask, value, delta, width);
}
template <class T> inline T __shfl_xor_sync(unsigned int mask, T value, int lane_mask, int width = 32) {
    return fk_emu_shuffle(FK_EMU_SHFL_XOR, mask, value, (unsigned int)lane_mask, width);
}
inline unsigned int __reduce_add_sync(unsigned int mask, unsigned int value) {
    for (int lane = 16; lane > 0; lane /= 2)
        value += __shfl_xor_sync(mask, value, lane);
    return value;
}

/* ---- primitives --------------------------------------------------------------------------------------- */

inline unsigned int smem_base() {
    return fk_emu_engine->smem_base();
}
inline void st_shared_u32(unsigned int addr, unsigned int v) {
    fk_emu_engine->st_shared_u32(addr, v);
}
inline void st_shared_v4(unsigned int addr, uint4 v) {
    fk_emu_engine->st_shared_v4(addr, &v);
}
inline unsigned int ld_shared_u32(unsigned int addr) {
    return fk_emu_engine->ld_shared_u32(addr);
}
inline uint4 ld_shared_v4(unsigned int addr) {
    uint4 v;
    fk_emu_engine->ld_shared_v4(&v, addr);
    return v;
}
inline void st_shared_v2(unsigned int addr, unsigned int x, unsigned int y) {
    st_shared_u32(addr, x);
    st_shared_u32(addr + 4, y);
}

inline uint2 ld_shared_v2(unsigned int addr) {
    uint2 v;
    fk_emu_engine->ld_shared_f32x2(&v, addr);
    return v;
}
inline float2 ld_shared_f32x2(unsigned int addr) {
    float2 v;
    fk_emu_engine->ld_shared_f32x2(&v, addr);
    return v;
}
inline uint4 ld_global_v4(const void *p) {
    uint4 v;
    fk_emu_engine->ld_global_v4(&v, p);
    return v;
}
inline uint4 ld_global_last_v4(const void *p) {
    return ld_global_v4(p);
}
inline void st_global_v4(void *p, uint4 v) {
    fk_emu_engine->st_global_v4(p, &v);
}
inline unsigned int ld_global_at(const void *base, int i, int stride) {
    return *(const unsigned int *)((const char *)base + (long long)i * stride);
}
inline unsigned int ld_global_half_at(const void *base, int i, int stride) {
    return *(const unsigned short *)((const char *)base + (long long)i * stride);
}
inline uint2 ld_global_pair_at(const void *base, int i) {
    return *(const uint2 *)((const unsigned int *)base + i);
}
inline unsigned int ld_global_word_at(const void *base, int i) {
    return *(const unsigned int *)((const unsigned short *)base + i);
}
inline unsigned int ld_global_word(const void *p) {
    return *(const unsigned int *)p;
}
inline uint2 ld_global_pair(const void *p) {
    return *(const uint2 *)p;
}

/* Adds to global memory, atomic and in no order. */
inline void red_add_f32(float *p, float v) {
    fk_emu_engine->red_add_f32(p, v);
}
inline void red_add_f32x4(float *p, const float (&v)[4]) {
    fk_emu_engine->red_add_f32x4(p, v);
}
inline void red_add_u64(unsigned long long *p, unsigned long long v) {
    fk_emu_engine->red_add_u64(p, v);
}

/* What blocks hand out work with. */
inline unsigned int atom_inc_u32(unsigned int *p, unsigned int limit) {
    return fk_emu_engine->atom_inc_u32(p, limit);
}
/* A block has an SM for itself. */
inline unsigned int sm_id() {
    return blockIdx.x;
}
inline void start_next() {}
inline void wait_for_previous() {}
inline void cas_u64x2(unsigned long long *p, unsigned long long expected_0, unsigned long long expected_1,
                      unsigned long long desired_0, unsigned long long desired_1) {
    const unsigned long long expected[2] = {expected_0, expected_1}, desired[2] = {desired_0, desired_1};
    fk_emu_engine->cas_u64x2(p, expected, desired);
}
inline unsigned long long ld_acquire_u64(const unsigned long long *p) {
    return fk_emu_engine->ld_acquire_u64(p);
}
inline void st_release_u64(unsigned long long *p, unsigned long long v) {
    fk_emu_engine->st_release_u64(p, v);
}
inline void red_release_inc(unsigned int *p) {
    fk_emu_engine->atom_inc_u32(p, 0xffffffff);
}
inline unsigned int ld_acquire_u32(const unsigned int *p) {
    return fk_emu_engine->ld_acquire_u32(p);
}
inline void st_release_u32(unsigned int *p, unsigned int v) {
    fk_emu_engine->st_release_u32(p, v);
}

inline void ldmatrix_x4(unsigned int (&r)[4], unsigned int addr) {
    fk_emu_engine->ldmatrix(FK_EMU_LDMATRIX_X4, r, addr);
}
inline void ldmatrix_x4_trans(unsigned int (&r)[4], unsigned int addr) {
    fk_emu_engine->ldmatrix(FK_EMU_LDMATRIX_X4_TRANS, r, addr);
}

inline void cp_async_16(unsigned int dst, const void *src, bool valid) {
    fk_emu_engine->cp_async_16(dst, src, valid);
}
inline void cp_async_4(unsigned int dst, const void *src) {
    fk_emu_engine->cp_async_4(dst, src);
}
inline void cp_async_commit() {
    fk_emu_engine->cp_async_commit();
}
template <int N> inline void cp_async_wait() {
    fk_emu_engine->cp_async_wait(N);
}

inline void mma_m16n8k16_fp16(float (&c)[4], const unsigned int (&a)[4], unsigned int b0, unsigned int b1) {
    fk_emu_engine->mma(FK_EMU_MMA_M16N8K16_FP16, c, a, b0, b1);
}
inline void mma_m16n8k16_bf16(float (&c)[4], const unsigned int (&a)[4], unsigned int b0, unsigned int b1) {
    fk_emu_engine->mma(FK_EMU_MMA_M16N8K16_BF16, c, a, b0, b1);
}
inline void mma_m16n8k8_fp16(float (&c)[4], unsigned int a0, unsigned int a1, unsigned int b0) {
    const unsigned int a[2] = {a0, a1};
    fk_emu_engine->mma(FK_EMU_MMA_M16N8K8_FP16, c, a, b0, 0);
}

inline void mma_m16n8k16_parts(float (&c)[4], const unsigned int (&a)[4], unsigned int b0, unsigned int b1) {
    fk_emu_engine->mma(FK_EMU_MMA_M16N8K16_PARTS, c, a, b0, b1);
}

inline unsigned int pack_fp16(float lo, float hi) {
    return fk_emu_engine->pack_fp16(lo, hi);
}
inline unsigned int pack_bf16(float lo, float hi) {
    return fk_emu_engine->pack_bf16(lo, hi);
}
inline unsigned int pack_e4m3(float a, float b, float c, float d) {
    return fk_emu_engine->pack_e4m3(a) | fk_emu_engine->pack_e4m3(b) << 8 | fk_emu_engine->pack_e4m3(c) << 16 |
           fk_emu_engine->pack_e4m3(d) << 24;
}
/* NaN stays NaN here, as from sm_89 on. */
inline uint2 unpack_e4m3_fp16(unsigned int v) {
    const auto of = fk_emu_engine->unpack_e4m3;
    return {pack_fp16(of(v), of(v >> 8)), pack_fp16(of(v >> 16), of(v >> 24))};
}
inline uint2 unpack_e4m3_bf16(unsigned int v) {
    const auto of = fk_emu_engine->unpack_e4m3;
    return {pack_bf16(of(v), of(v >> 8)), pack_bf16(of(v >> 16), of(v >> 24))};
}

inline unsigned int pack_positive_fp16(float lo, float hi) {
    return fk_emu_engine->pack_fp16(lo < 0 ? 0.0f : lo, hi < 0 ? 0.0f : hi);
}
inline void clear_f32(float &x) {
    x = 0.0f;
}
inline unsigned int max_u16x2(unsigned int a, unsigned int b) {
    const unsigned int low = (a & 0xffffu) > (b & 0xffffu) ? a : b, high = a >> 16 > b >> 16 ? a : b;
    return (high & 0xffff0000u) | (low & 0xffffu);
}

inline float lower_fp16(unsigned int v) {
    return fk_emu_engine->unpack_fp16(v & 0xffffu);
}
inline float upper_fp16(unsigned int v) {
    return fk_emu_engine->unpack_fp16(v >> 16);
}
inline float lower_bf16(unsigned int v) {
    return fk_emu_bits<float>(v << 16);
}
inline float upper_bf16(unsigned int v) {
    return fk_emu_bits<float>(v & 0xffff0000u);
}
inline float2 unpack_fp16(unsigned int v) {
    return {fk_emu_engine->unpack_fp16(v & 0xffffu), fk_emu_engine->unpack_fp16(v >> 16)};
}
inline float2 unpack_bf16(unsigned int v) {
    return {fk_emu_bits<float>(v << 16), fk_emu_bits<float>(v & 0xffff0000u)};
}

/* prmt: the four bytes that the selector's nibbles name; nibble 8 + n is the highest bit of byte n in every bit. */
inline unsigned int byte_permute(unsigned int a, unsigned int b, unsigned int selector) {
    const unsigned long long bytes = (unsigned long long)b << 32 | a;
    unsigned int r = 0;
    for (unsigned int n = 0; n < 4; ++n) {
        const unsigned int nibble = selector >> 4 * n & 15, byte = bytes >> 8 * (nibble & 7) & 255;
        r |= (nibble < 8 ? byte : byte & 128 ? 255u : 0u) << 8 * n;
    }
    return r;
}

/* bmsk.clamp: start and width are unsigned, and what lies beyond bit 31 is left out. */
inline unsigned int bit_mask(int start, int width) {
    const unsigned long long ones = (unsigned int)width >= 32 ? 0xffffffffull : (1ull << width) - 1;
    return (unsigned int)start >= 32 ? 0 : (unsigned int)(ones << start);
}

/* ex2.approx.ftz: subnormal operands and results are zero. */
inline float ex2(float x) {
    const float y = exp2f(x);
    return y < 0x1p-126f ? 0.0f : y;
}
/* Hides x from the optimiser of the device's compiler; here that would gain nothing. */
template <class T> inline T opaque(T x) {
    return x;
}

inline float lg2(float x) {
    return log2f(fabsf(x) < 0x1p-126f ? 0.0f * x : x);
}

#include "hopper_device.hpp"

/* ---- what the image exports: the text appended to the kernel's calls this with its entries ------------- */

template <class Params> constexpr unsigned long long fk_emu_param_bytes(void (*)(Params)) {
    return sizeof(Params);
}
template <class Params> inline void fk_emu_call(void (*entry)(Params), const void *params) {
    entry(*(const Params *)params);
}
template <auto ENTRY> inline void fk_emu_run(const void *params) {
    fk_emu_call(ENTRY, params);
}
#ifdef __clang__
#define FK_EMU_COMPILER __VERSION__
#else
#define FK_EMU_COMPILER "GCC " __VERSION__
#endif
#define FK_EMU_ENTRY(ENTRY) {#ENTRY, fk_emu_param_bytes(ENTRY), fk_emu_run<ENTRY>},
#define FK_EMU_EXPORT(...)                                                                                             \
    static void fk_emu_bind(const fk_emu_table *engine) {                                                              \
        fk_emu_engine = engine;                                                                                        \
    }                                                                                                                  \
    static const fk_emu_entry fk_emu_entries[] = {__VA_ARGS__};                                                        \
    extern "C" __attribute__((visibility("default")))                                                                  \
    const fk_emu_exports fk_emu_kernel = {fk_emu_bind, fk_emu_entries, sizeof fk_emu_entries / sizeof *fk_emu_entries, \
                                          FK_EMU_COMPILER_MARK FK_EMU_COMPILER};
