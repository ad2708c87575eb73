/* A tiled matrix product with double-buffered cp.async, swizzled tiles and mma: right under every schedule, and wrong
 * in a named way as soon as one wait, barrier or swizzle is taken away. */
#include "harness.h"
#include "runtime/emulator/half.h"

enum { M = 64, N = 64, K = 256, K_TILE = 32, TILE_BYTES = 64 * K_TILE * 2, SMEM = 4 * TILE_BYTES };

/* out (float, M x N) = A (M x K) B^T (N x K): fp16, A and then B in `in`. Rows of a tile are 64 bytes; chunk c of row r
 * lies at c ^ (r / 2 % 4), so that eight rows touch all banks. */
static const char matmul[] =
    PROLOGUE "constexpr int K = 256, KT = 32, TILE = 64 * KT * 2;\n"
             "__device__ __forceinline__ u32 at(u32 r, u32 c) { return r * 64 + SWIZZLE(r, c) * 16; }\n"
             "__device__ void load_tile(u32 dst, const Element *src) {\n"
             "    #pragma unroll\n"
             "    for (u32 i = threadIdx.x; i < 64 * KT / 8; i += blockDim.x)\n"
             "        cp_async_16(dst + at(i / 4, i % 4), src + (i / 4) * K + i % 4 * 8, true);\n"
             "}\n" KERNEL "{\n"
             "    const u32 lane = threadIdx.x % 32, warp = threadIdx.x / 32, s = smem_base();\n"
             "    const Element *a = (const Element *)p.in + blockIdx.x * 64 * K, *b = (const Element *)p.in + p.n;\n"
             "    float c[8][4] = {};\n"
             "    load_tile(s, a); load_tile(s + 2 * TILE, b); cp_async_commit();\n"
             "    for (int k = 0; k < K / KT; ++k) {\n"
             "        const u32 now = k % 2 * TILE, next = TILE - now;\n"
             "        if (k + 1 < K / KT) {\n"
             "            load_tile(s + next, a + (k + 1) * KT); load_tile(s + 2 * TILE + next, b + (k + 1) * KT);\n"
             "        }\n"
             "        cp_async_commit();\n"
             "        WAIT;\n"
             "        BARRIER_1;\n"
             "        #pragma unroll\n"
             "        for (int kk = 0; kk < 2; ++kk) {\n"
             "            u32 fa[4], fb[4];\n"
             "            ldmatrix_x4(fa, s + now + at(warp * 16 + lane % 16, kk * 2 + lane / 16));\n"
             "            for (int n = 0; n < 4; ++n) {\n"
             "                ldmatrix_x4(fb, s + 2 * TILE + now + at(n * 16 + lane % 8 + lane / 16 * 8, kk * 2 + lane "
             "/ 8 % 2));\n"
             "                mma_m16n8k16_fp16(c[2 * n], fa, fb[0], fb[1]);\n"
             "                mma_m16n8k16_fp16(c[2 * n + 1], fa, fb[2], fb[3]);\n"
             "            }\n"
             "        }\n"
             "        BARRIER_2;\n"
             "    }\n"
             "    float *out = (float *)p.out + blockIdx.x * 64 * 64;\n"
             "    for (int n = 0; n < 8; ++n)\n"
             "        for (int i = 0; i < 4; ++i)\n"
             "            out[(warp * 16 + lane / 4 + i / 2 * 8) * 64 + n * 8 + lane % 4 * 2 + i % 2] = c[n][i];\n"
             "}\n";

#define WAIT_1 "#define WAIT cp_async_wait<1>()\n"
#define BARRIERS "#define BARRIER_1 __syncthreads()\n#define BARRIER_2 __syncthreads()\n"
#define SWIZZLED "#define SWIZZLE(r, c) ((c) ^ (r) / 2 % 4)\n"

enum { BLOCKS = 5, WORDS_A = BLOCKS * M * K / 2 };
static uint32_t *in, *out;
static float expected[BLOCKS][M][N];

static void fill(void) {
    uint16_t *h = (uint16_t *)in;
    uint32_t random = 3;
    for (uint32_t i = 0; i < 2 * WORDS_A + N * K; ++i) {
        random = random * 1664525u + 1013904223u;
        h[i] = fk_fp16_from_float((float)(random >> 24) / 16.0f - 8.0f); /* products and sums are exact in float */
    }
    for (uint32_t m = 0; m < BLOCKS * M; ++m)
        for (uint32_t n = 0; n < N; ++n)
            for (uint32_t k = 0; k < K; ++k)
                expected[m / M][m % M][n] +=
                    fk_fp16_to_float(h[m * K + k]) * fk_fp16_to_float(h[2 * WORDS_A + n * K + k]);
}

static fk_emu_image *load_matmul(const char *defines) {
    char text[8192];
    snprintf(text, sizeof text, "%s%s", defines, matmul);
    return load(text);
}

static fk_status run(const fk_emu_image *image, const fk_emu_options *options, fk_emu_stats *stats, fk_error *err) {
    const params p = {out, in, 2 * WORDS_A};
    memset(out, 0xff, sizeof expected);
    return fk_emu_launch_grid(image, "fk_kernel", &p, sizeof p, (fk_emu_grid){BLOCKS, 1, 1, 1}, 128, SMEM, options,
                              stats, err);
}

static void test_right_under_all_schedules(void **state) {
    (void)state;
    fk_emu_image *image = load_matmul(WAIT_1 BARRIERS SWIZZLED);
    for (uint64_t seed = 0; seed < 12; ++seed) {
        const fk_emu_options options = {
            .seed = seed, .late_copies = seed & 1, .poison = seed & 2, .check_races = !(seed & 4)};
        fk_error err = {FK_OK, ""};
        if (run(image, &options, NULL, &err) != FK_OK) fail_msg("%s", err.text);
        assert_memory_equal(out, expected, sizeof expected);
    }
    fk_emu_unload(image);
}

static void test_stats(void **state) {
    (void)state;
    fk_emu_image *good = load_matmul(WAIT_1 BARRIERS SWIZZLED);
    fk_emu_image *bad = load_matmul(WAIT_1 BARRIERS "#define SWIZZLE(r, c) (c)\n");
    fk_error err = {FK_OK, ""};
    fk_emu_stats s;
    assert_int_equal(run(good, &strict, &s, &err), FK_OK);
    /* Per block: 8 K tiles of two 64 x 32 operands; 4 warps x 2 k steps x (1 + 4) ldmatrix of 4 passes, and the copies
     * of each tile, 512 chunks of 8 to a pass. */
    assert_int_equal(s.mma, BLOCKS * 8 * 4 * 2 * 8);
    assert_int_equal(s.global_load_bytes, BLOCKS * 8 * 2 * TILE_BYTES);
    assert_int_equal(s.global_store_bytes, 0);
    assert_int_equal(s.smem_wavefronts, BLOCKS * 8 * (4 * 2 * 5 * 4 + 2 * 256 / 8));
    assert_int_equal(s.smem_conflicts, 0);
    /* Rows 64 bytes apart without a swizzle: a matrix's eight rows share two groups of banks, so four passes each. */
    assert_int_equal(run(bad, &strict, &s, &err), FK_OK);
    assert_memory_equal(out, expected, sizeof expected);
    assert_int_equal(s.smem_conflicts, BLOCKS * 8 * 4 * 2 * 5 * 4 * 3);
    fk_emu_unload(good);
    fk_emu_unload(bad);
}

/* `words` must be in the message under every seed and both timings of copies. */
static void expect_fault(const char *defines, const char *words) {
    fk_emu_image *image = load_matmul(defines);
    for (uint64_t seed = 0; seed < 6; ++seed) {
        const fk_emu_options options = {.seed = seed, .late_copies = seed & 1, .check_races = true};
        fk_error err = {FK_OK, ""};
        assert_int_equal(run(image, &options, NULL, &err), FK_LAUNCH_FAILED);
        if (!strstr(err.text, words)) fail_msg("no '%s' in: %s", words, err.text);
    }
    fk_emu_unload(image);
}

static void test_removed_synchronisation(void **state) {
    (void)state;
    expect_fault("#define WAIT\n" BARRIERS SWIZZLED, "in flight");
    expect_fault("#define WAIT cp_async_wait<2>()\n" BARRIERS SWIZZLED, "in flight");
    expect_fault(WAIT_1 "#define BARRIER_1\n#define BARRIER_2 __syncthreads()\n" SWIZZLED, "smem_base() + ");
    expect_fault(WAIT_1 "#define BARRIER_1 __syncthreads()\n#define BARRIER_2\n" SWIZZLED, "smem_base() + ");
    /* With a barrier that only holds warps together, the other warps' copies are still missed. */
    expect_fault(WAIT_1 "#define BARRIER_1 __syncwarp()\n#define BARRIER_2 __syncthreads()\n" SWIZZLED,
                 "smem_base() + ");
}

/* Without the checks the late copies alone give the missing wait away. */
static void test_missing_wait_changes_the_result(void **state) {
    (void)state;
    fk_emu_image *image = load_matmul("#define WAIT\n" BARRIERS SWIZZLED);
    const fk_emu_options late = {.late_copies = true, .poison = true}, eager = {.poison = true};
    fk_error err = {FK_OK, ""};
    assert_int_equal(run(image, &late, NULL, &err), FK_OK);
    assert_memory_not_equal(out, expected, sizeof expected);
    assert_int_equal(run(image, &eager, NULL, &err), FK_OK);
    assert_memory_equal(out, expected, sizeof expected); /* which is why eager copies are not enough for a test */
    fk_emu_unload(image);
}

static void test_os_threads_do_not_matter(void **state) {
    (void)state;
    fk_emu_image *image = load_matmul(WAIT_1 BARRIERS SWIZZLED);
    static const char *const counts[] = {"1", "3", "16", "1000", ""};
    fk_error err = {FK_OK, ""};
    for (size_t i = 0; i < sizeof counts / sizeof *counts; ++i) {
        setenv("FLASHKILN_EMU_THREADS", counts[i], 1);
        assert_int_equal(run(image, &strict, NULL, &err), FK_OK);
        assert_memory_equal(out, expected, sizeof expected);
    }
    setenv("FLASHKILN_EMU_THREADS", "not a number", 1);
    assert_int_equal(run(image, &strict, NULL, &err), FK_BAD_ARGUMENT);
    unsetenv("FLASHKILN_EMU_THREADS");
    fk_emu_unload(image);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_right_under_all_schedules), cmocka_unit_test(test_stats),
        cmocka_unit_test(test_removed_synchronisation),   cmocka_unit_test(test_missing_wait_changes_the_result),
        cmocka_unit_test(test_os_threads_do_not_matter),
    };
    in = device_words(WORDS_A + N * K / 2);
    out = device_words(BLOCKS * M * N);
    fill();
    const int failed = cmocka_run_group_tests(tests, NULL, NULL);
    fk_emu_free(in);
    fk_emu_free(out);
    return failed;
}
