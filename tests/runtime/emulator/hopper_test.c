/* A warp-specialised matrix product: a thread of one warpgroup copies boxes, the other warpgroup multiplies them, with
 * mbarriers between; right under every schedule, and wrong in a named way as soon as one part is taken away. */
#include "harness.h"
#include "runtime/emulator/half.h"

enum { M = 64, N = 128, K = 192, K_TILE = 64, ROWS_LEFT = 50 };
enum { A_BYTES = M * K_TILE * 2, B_BYTES = N * K_TILE * 2, STAGE = A_BYTES + B_BYTES, SMEM = 2 * STAGE + 1024 };

typedef struct hopper_params {
    fk_emu_tensor_map a, b;
    float *result;
} hopper_params;

/* out (float, M x N) = A (M x K) B (K x N), both 16-bit. B is [n][k] (K-major) or [k][n] (transposed), in panels of 64
 * elements, 128 bytes. The first ROWS_LEFT rows of A exist. Barriers: full 0, 1 and empty 0, 1. */
static const char matmul[] = PROLOGUE
    "#ifndef CONSUMER_REGISTERS\n#define CONSUMER_REGISTERS 240\n#endif\n"
    "struct alignas(64) Map { u64 opaque[16]; };\n"
    "struct HopperParams { Map a, b; float *result; };\n"
    "constexpr int KT = 64, TILES = 3, A_BYTES = 64 * KT * 2, STAGE = A_BYTES + 128 * KT * 2;\n"
    "extern \"C\" __global__ void __launch_bounds__(256, 1) fk_kernel(const __grid_constant__ HopperParams p) {\n"
    "    const u32 s = smem_base(), full = s + 2 * STAGE, empty = full + 16, warp = threadIdx.x / 32;\n"
    "    if (threadIdx.x == 0) {\n"
    "        for (int i = 0; i < 2; ++i) { mbarrier_init(full + 8 * i, 1); mbarrier_init(empty + 8 * i, 4); }\n"
    "        mbarrier_init_fence();\n"
    "    }\n"
    "    AFTER_INIT;\n"
    "    if (warp >= 4) {\n"
    "        setmaxnreg_dec<24>();\n"
    "        for (int k = 0; threadIdx.x == 128 && k < TILES; ++k) {\n"
    "            const u32 at = s + k % 2 * STAGE, bar = full + k % 2 * 8;\n"
    "            WAIT_EMPTY(empty + k % 2 * 8, (k / 2 & 1) ^ 1);\n"
    "            mbarrier_arrive_expect_tx(bar, STAGE);\n"
    "            tma_load_4d(at, &p.a, bar, k * KT, 0, 0, 0);\n"
    "#if TRANS_B\n"
    "            for (int i = 0; i < 2; ++i) tma_load_4d(at + A_BYTES + i * 8192, &p.b, bar, i * 64, k * KT, 0, 0);\n"
    "#else\n"
    "            tma_load_4d(at + A_BYTES, &p.b, bar, k * KT, 0, 0, 0);\n"
    "#endif\n"
    "        }\n"
    "        return;\n"
    "    }\n"
    "    setmaxnreg_inc<CONSUMER_REGISTERS>();\n"
    "    const u32 lane = threadIdx.x % 32, row = warp * 16 + lane % 16;\n"
    "    float acc[64];\n"
    "    for (int k = 0; k < TILES; ++k) {\n"
    "        const u32 at = s + k % 2 * STAGE;\n"
    "        WAIT_FULL(full + k % 2 * 8, k / 2 & 1);\n"
    "        const u64 a = wgmma_descriptor<128>(at, 16, 1024), b = wgmma_descriptor<128>(at + A_BYTES, 8192, 1024);\n"
    "#if A_REGISTERS\n"
    "        u32 ra[4][4];\n"
    "        for (int i = 0; i < 4; ++i) ldmatrix_x4(ra[i], at + row * 128 + ((2 * i + lane / 16) ^ row % 8) * 16);\n"
    "#endif\n"
    "#if A_REGISTERS\n"
    "        wgmma_m64k64_fp16<TRANS_B ? 0 : 128>(acc, ra, b, k > 0);\n"
    "#else\n"
    "        wgmma_m64k64_fp16<64, TRANS_B ? 0 : 128>(acc, a, b, k > 0);\n"
    "#endif\n"
    "        WAIT_PRODUCT;\n"
    "        if (lane == 0) RELEASE(empty + k % 2 * 8);\n"
    "    }\n"
    "    for (int j = 0; j < 16; ++j)\n"
    "        for (int i = 0; i < 4; ++i)\n"
    "            p.result[(warp * 16 + lane / 4 + i / 2 * 8) * 128 + j * 8 + lane % 4 * 2 + i % 2] = acc[4 * j + i];\n"
    "    wgmma_wait<0>(acc);\n"
    "}\n";

#define FORM(trans_b, a_registers) "#define TRANS_B " #trans_b "\n#define A_REGISTERS " #a_registers "\n"
#define INIT "#define AFTER_INIT __syncthreads()\n"
#define EMPTY "#define WAIT_EMPTY mbarrier_wait\n"
#define FULL "#define WAIT_FULL mbarrier_wait\n"
#define RELEASE "#define RELEASE mbarrier_arrive\n"
#define PRODUCT "#define WAIT_PRODUCT wgmma_wait<0>(acc)\n"

static uint16_t *a, *b_rows, *b_columns; /* [M][K], [N][K], [K][N] */
static float *result, expected[M][N];

static void fill(void) {
    uint32_t random = 3;
    for (uint32_t i = 0; i < M * K + N * K; ++i) {
        random = random * 1664525u + 1013904223u;
        const uint16_t h = fk_fp16_from_float((float)(random >> 24) / 16.0f - 8.0f); /* sums are exact in float */
        if (i < M * K)
            a[i] = h;
        else
            b_rows[i - M * K] = b_columns[(i - M * K) % K * N + (i - M * K) / K] = h;
    }
    for (uint32_t m = 0; m < ROWS_LEFT; ++m)
        for (uint32_t n = 0; n < N; ++n)
            for (uint32_t k = 0; k < K; ++k)
                expected[m][n] += fk_fp16_to_float(a[m * K + k]) * fk_fp16_to_float(b_rows[n * K + k]);
}

static fk_emu_tensor_map map_of(void *base, uint32_t columns, uint32_t rows, uint32_t pitch, uint16_t box_rows) {
    const fk_emu_tensor t = {.base = base,
                             .strides = {pitch * 2, 1u << 20, 1u << 20},
                             .dims = {columns, rows, 1, 1},
                             .box = {64, box_rows, 1, 1},
                             .rank = 4,
                             .element_bytes = 2,
                             .swizzle = 128};
    fk_emu_tensor_map map;
    fk_error err;
    if (fk_emu_tensor_map_encode(&map, &t, &err) != FK_OK) fail_msg("%s", err.text);
    return map;
}

static fk_status run(const fk_emu_image *image, bool transposed, const fk_emu_options *options, fk_error *err) {
    const hopper_params p = {.a = map_of(a, K, ROWS_LEFT, K, M),
                             .b = transposed ? map_of(b_columns, N, K, N, K_TILE) : map_of(b_rows, K, N, K, N),
                             .result = result};
    memset(result, 0xff, sizeof expected);
    return fk_emu_launch(image, &p, sizeof p, 1, 256, SMEM, options, err);
}

static fk_emu_image *load_matmul(const char *defines) {
    char text[8192];
    snprintf(text, sizeof text, "%s%s", defines, matmul);
    return load(text);
}

static void check_form(const char *defines, bool transposed) {
    fk_emu_image *image = load_matmul(defines);
    for (uint64_t seed = 0; seed < 8; ++seed) {
        const fk_emu_options options = {
            .seed = seed, .late_copies = seed & 1, .poison = seed & 2, .check_races = !(seed & 4)};
        fk_error err = {FK_OK, ""};
        if (run(image, transposed, &options, &err) != FK_OK) fail_msg("%s", err.text);
        assert_memory_equal(result, expected, sizeof expected);
    }
    fk_emu_unload(image);
}

static void test_matmul(void **state) {
    (void)state;
    check_form(FORM(0, 0) INIT EMPTY FULL RELEASE PRODUCT, false);
    check_form(FORM(0, 1) INIT EMPTY FULL RELEASE PRODUCT, false);
    check_form(FORM(1, 0) INIT EMPTY FULL RELEASE PRODUCT, true);
    check_form(FORM(1, 1) INIT EMPTY FULL RELEASE PRODUCT, true);
}

/* `words` must be in the message under every seed and both timings of copies. */
static void expect_fault(const char *defines, const char *words) {
    fk_emu_image *image = load_matmul(defines);
    for (uint64_t seed = 0; seed < 6; ++seed) {
        const fk_emu_options options = {.seed = seed, .late_copies = seed & 1, .check_races = true};
        fk_error err = {FK_OK, ""};
        assert_int_equal(run(image, false, &options, &err), FK_LAUNCH_FAILED);
        if (!strstr(err.text, words)) fail_msg("no '%s' in: %s", words, err.text);
    }
    fk_emu_unload(image);
}

static void test_removed_synchronisation(void **state) {
    (void)state;
    expect_fault(FORM(0, 0) INIT EMPTY FULL "#define RELEASE(bar) (void)0\n" PRODUCT,
                 "lane 0 at the mbarrier at smem_base() + 49168, phase 0, which lacks 4 of 4 arrivals and 0 bytes");
    expect_fault(FORM(0, 0) INIT EMPTY "#define WAIT_FULL(bar, parity) (void)0\n" RELEASE PRODUCT, "smem_base() + ");
    expect_fault(FORM(0, 0) INIT "#define WAIT_EMPTY(bar, parity) (void)0\n" FULL RELEASE PRODUCT, "smem_base() + ");
    expect_fault(FORM(0, 0) "#define AFTER_INIT\n" EMPTY FULL RELEASE PRODUCT, "mbarrier");
}

/* Registers read before the wait are NaN, whichever way copies are timed. */
static void test_accumulator_in_flight(void **state) {
    (void)state;
    fk_emu_image *image =
        load_matmul(FORM(0, 0) INIT EMPTY FULL RELEASE "#define WAIT_PRODUCT if (k < 2) wgmma_wait<0>(acc)\n");
    for (uint64_t seed = 0; seed < 4; ++seed) {
        const fk_emu_options options = {.seed = seed, .late_copies = seed & 1, .check_races = true};
        fk_error err = {FK_OK, ""};
        if (run(image, false, &options, &err) != FK_OK) fail_msg("%s", err.text);
        for (uint32_t i = 0; i < M * N; ++i)
            assert_true(result[i] != result[i]);
    }
    fk_emu_unload(image);
}

/* 256 threads have 255 registers each: 24 and 488 would be 512. */
static void test_too_many_registers(void **state) {
    (void)state;
    expect_fault("#define CONSUMER_REGISTERS 488\n" FORM(0, 0) INIT EMPTY FULL RELEASE PRODUCT,
                 "setmaxnreg: the warps want 2048 registers a lane together, and were launched with 2040");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_matmul),
        cmocka_unit_test(test_removed_synchronisation),
        cmocka_unit_test(test_accumulator_in_flight),
        cmocka_unit_test(test_too_many_registers),
    };
    uint32_t *memory[] = {device_words(M * K / 2), device_words(N * K / 2), device_words(N * K / 2),
                          device_words(M * N)};
    a = (uint16_t *)memory[0];
    b_rows = (uint16_t *)memory[1];
    b_columns = (uint16_t *)memory[2];
    result = (float *)memory[3];
    fill();
    const int failed = cmocka_run_group_tests(tests, NULL, NULL);
    for (size_t i = 0; i < sizeof memory / sizeof *memory; ++i)
        fk_emu_free(memory[i]);
    return failed;
}
