/* Clusters: CTAs that run side by side, with addresses, barriers and copies in one another's shared memory. */
#include "harness.h"

enum { CTAS = 6, CLUSTER = 2, THREADS = 64, ROWS = 4, ROW_BYTES = 128, BOX = ROWS * ROW_BYTES, SMEM = 2 * BOX + 768 };

typedef struct cluster_params {
    fk_emu_tensor_map map;
    uint32_t *out;
} cluster_params;

/* Each CTA tells the other a number, sends it 64 bytes by a copy and 16 of each lane's registers, and loads half of two
 * boxes for both. */
static const char head[] = PROLOGUE
    "struct alignas(64) Map { u64 opaque[16]; };\n"
    "struct ClusterParams { Map map; u32 *out; };\n"
    "enum { SENT = 1024, TOLD = SENT + 128, BARS = TOLD + 16, LANES = BARS + 32 };\n"
    "extern \"C\" __global__ void __cluster_dims__(2, 1, 1) fk_kernel(const __grid_constant__ ClusterParams p) {\n"
    "    const u32 s = smem_base(), rank = cluster_rank(), peer = rank ^ 1, bar = s + BARS, t = threadIdx.x;\n"
    "    u32 *out = p.out + blockIdx.x * 64;\n";
static const char body[] =
    "    if (t == 0) { mbarrier_init(bar, 1); mbarrier_init(bar + 8, 1); mbarrier_init(bar + 16, 32);\n"
    "                  mbarrier_init(bar + 24, 1);\n"
    "                  mbarrier_init_fence(); }\n"
    "    cluster_sync();\n"
    "    if (t < 16) st_shared_u32(s + SENT + 4 * t, 100 * blockIdx.x + t);\n"
    "    named_barrier_sync(1, 64);\n"
    "    if (t == 0) {\n"
    "        mbarrier_arrive_expect_tx(bar, 64);\n"
    "        cluster_copy(cluster_map(s + SENT + 64, peer), s + SENT, 64, cluster_map(bar, peer));\n"
    "        mbarrier_arrive_expect_tx(bar + 8, 1024);\n"
    "        tma_multicast_4d(s + 512 * rank, &p.map, bar + 8, 64 * (int)rank, 0, 0, (int)blockIdx.x / 2, 3);\n"
    "    }\n"
    "    if (t == 0) mbarrier_arrive_expect_tx(bar + 24, 512);\n"
    "    if (t >= 32) {\n"
    "        const uint4 x = make_uint4(t, 2 * t, 0, blockIdx.x);\n"
    "        cluster_send_v4(cluster_map(s + LANES + 16 * (t - 32), peer), x, cluster_map(bar + 24, peer));\n"
    "    }\n"
    "    if (t == 32) cluster_store_u32(cluster_map(s + TOLD, peer), 7 + blockIdx.x);\n"
    "    __syncwarp();\n"
    "    if (t >= 32) cluster_arrive(cluster_map(bar + 16, peer));\n"
    "    cluster_wait(bar + 16, 0);\n"
    "    if (t == 0) { out[0] = rank; out[1] = ld_shared_u32(s + TOLD); out[2] = threadIdx.x + blockDim.x; }\n"
    "    WAIT;\n"
    "    if (t < 16) out[16 + t] = ld_shared_u32(s + SENT + 64 + 4 * t);\n"
    "    mbarrier_wait(bar + 24, 0);\n"
    "    if (t < 4) out[40 + t] = ld_shared_u32(s + LANES + 16 * 5 + 4 * t);\n"
    "    mbarrier_wait(bar + 8, 0);\n"
    "    if (t < 8) out[32 + t] = ld_shared_u32(s + 128 * t);\n"
    "    cluster_sync();\n"
    "}\n";

static fk_emu_image *load_cluster(const char *defines, const char *rest) {
    char text[8192];
    snprintf(text, sizeof text, "%s\n%s%s", defines, head, rest);
    return load(text);
}

/* Element x of row y of box z is 1000 z + 200 y + x. */
static void make_map(uint16_t *data, cluster_params *p) {
    const fk_emu_tensor t = {.base = data,
                             .strides = {256, 256 * ROWS, 256 * ROWS},
                             .dims = {128, ROWS, 1, CTAS / CLUSTER},
                             .box = {64, ROWS, 1, 1},
                             .rank = 4,
                             .element_bytes = 2,
                             .swizzle = 0};
    fk_error err;
    for (int i = 0; i < 128 * ROWS * CTAS / CLUSTER; ++i)
        data[i] = (uint16_t)(i / (128 * ROWS) * 1000 + i / 128 % ROWS * 200 + i % 128);
    assert_int_equal(fk_emu_tensor_map_encode(&p->map, &t, &err), FK_OK);
}

static fk_status launch(fk_emu_image *image, const cluster_params *p, fk_emu_grid grid, uint64_t seed, fk_error *err) {
    const fk_emu_options options = {.seed = seed, .poison = true, .check_races = true, .late_copies = seed & 1};
    return fk_emu_launch_grid(image, "fk_kernel", p, sizeof *p, grid, THREADS, SMEM + 1024, &options, NULL, err);
}

static void test_what_reaches_the_other(void **state) {
    (void)state;
    uint32_t *data = device_words(64 * ROWS * CTAS / CLUSTER), *out = device_words(CTAS * 64);
    cluster_params p = {.out = out};
    fk_error err;
    make_map((uint16_t *)data, &p);
    fk_emu_image *image = load_cluster("#define WAIT mbarrier_wait(bar, 0)", body);
    for (uint64_t seed = 0; seed < 6; ++seed) {
        memset(out, 0xff, CTAS * 64 * 4);
        if (launch(image, &p, (fk_emu_grid){CTAS, 1, 1, CLUSTER}, seed, &err)) fail_msg("%s", err.text);
        for (uint32_t cta = 0; cta < CTAS; ++cta) {
            const uint32_t *o = out + cta * 64, peer = cta ^ 1;
            assert_int_equal(o[0], cta % 2);
            assert_int_equal(o[1], 7 + peer);
            assert_int_equal(o[2], THREADS);
            for (uint32_t i = 0; i < 16; ++i)
                assert_int_equal(o[16 + i], 100 * peer + i);
            const uint32_t sent[4] = {37, 74, 0, (uint32_t)peer}; /* by lane 5 of the second warp */
            assert_memory_equal(o + 40, sent, sizeof sent);
            for (uint32_t row = 0; row < 2 * ROWS; ++row) /* the second box has the columns from 64 on */
                assert_int_equal(o[32 + row] & 0xffff, cta / 2 * 1000 + row % ROWS * 200 + row / ROWS * 64);
        }
    }
    fk_emu_unload(image);
    fk_emu_free(out);
    fk_emu_free(data);
}

static void test_what_is_reported(void **state) {
    (void)state;
    uint32_t *data = device_words(64 * ROWS * CTAS / CLUSTER), *out = device_words(CTAS * 64);
    cluster_params p = {.out = out};
    fk_error err;
    make_map((uint16_t *)data, &p);
    fk_emu_image *image = load_cluster("#define WAIT", body); /* the copy is not waited for */
    assert_int_equal(launch(image, &p, (fk_emu_grid){CTAS, 1, 1, CLUSTER}, 1, &err), FK_LAUNCH_FAILED);
    if (!strstr(err.text, "is in flight") && !strstr(err.text, "race at smem_base() + 1088")) fail_msg("%s", err.text);
    assert_int_equal(launch(image, &p, (fk_emu_grid){5, 1, 1, CLUSTER}, 1, &err), FK_BAD_ARGUMENT);
    assert_non_null(strstr(err.text, "grid.cluster is 2, must divide grid.x, 5"));
    fk_emu_unload(image);
    static const char *const bad[][2] = {
        {"__syncthreads(); }", "__syncthreads: the emulator has it for CTAs without a cluster alone"},
        {"if (t == 0) st_shared_u32(s + 4096, 0); }", "4 bytes at "},          /* past its own window */
        {"if (t == 0) st_shared_u32(cluster_map(s, 2), 0); }", "4 bytes at "}, /* no such CTA */
        {"if (t == 0) st_shared_u32(s, rank); if (t == 0 && rank) ld_shared_u32(cluster_map(s, 0)); }", "race at "},
    };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; ++i) {
        image = load_cluster("", bad[i][0]);
        assert_int_equal(launch(image, &p, (fk_emu_grid){CTAS, 1, 1, CLUSTER}, 2, &err), FK_LAUNCH_FAILED);
        if (!strstr(err.text, bad[i][1])) fail_msg("%s: %s", bad[i][0], err.text);
        fk_emu_unload(image);
    }
    fk_emu_free(out);
    fk_emu_free(data);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_what_reaches_the_other),
        cmocka_unit_test(test_what_is_reported),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
