/* Box copies against their definition, element by element; named barriers; and what a map may be. */
#include "harness.h"

enum { ROWS = 6, PLANES = 3, BATCH = 2, BOX_ROWS = 5, BOX_PLANES = 2 };

typedef struct copy_params {
    fk_emu_tensor_map from, to;
    uint32_t *seen;
    int32_t at[4];
    uint32_t bytes;
} copy_params;

/* Loads a box, shows the shared memory where it landed, and stores the box. */
static const char copy_kernel[] = PROLOGUE
    "struct alignas(64) Map { u64 opaque[16]; };\n"
    "struct CopyParams { Map from, to; u32 *seen; int at[4]; u32 bytes; };\n"
    "extern \"C\" __global__ void fk_kernel(const __grid_constant__ CopyParams p) {\n"
    "    const u32 s = smem_base(), bar = s + p.bytes;\n"
    "    if (threadIdx.x == 0) {\n"
    "        tma_prefetch_map(&p.from); mbarrier_init(bar, 1); mbarrier_init_fence();\n"
    "        mbarrier_arrive_expect_tx(bar, p.bytes);\n"
    "        tma_load_4d(s, &p.from, bar, p.at[0], p.at[1], p.at[2], p.at[3]);\n"
    "    }\n"
    "    __syncthreads();\n"
    "    mbarrier_wait(bar, 0);\n"
    "    for (u32 i = 4 * threadIdx.x; i < p.bytes; i += 4 * blockDim.x) p.seen[i / 4] = ld_shared_u32(s + i);\n"
    "    __syncthreads();\n"
    "    if (threadIdx.x == 0) {\n"
    "        fence_proxy_async();\n"
    "        tma_store_4d(&p.to, s, p.at[0], p.at[1], p.at[2], p.at[3]);\n"
    "        tma_store_commit();\n"
    "        STORE_WAIT;\n"
    "    }\n"
    "}\n";

static fk_emu_image *load_copy(const char *store_wait) {
    char text[8192];
    snprintf(text, sizeof text, "#define STORE_WAIT %s\n%s", store_wait, copy_kernel);
    return load(text);
}

static fk_emu_tensor tensor_of(void *base, uint32_t columns, uint32_t row_bytes, uint8_t swizzle) {
    return (fk_emu_tensor){.base = base,
                           .strides = {columns * 2, ROWS * columns * 2, PLANES * ROWS * columns * 2},
                           .dims = {columns, ROWS, PLANES, BATCH},
                           .box = {(uint16_t)(row_bytes / 2), BOX_ROWS, BOX_PLANES, 1},
                           .rank = 4,
                           .element_bytes = 2,
                           .swizzle = swizzle};
}

/* Where byte `at` of a box goes, from the figures of the CUDA programming guide. */
static uint32_t place(uint32_t at, uint32_t swizzle) {
    const uint32_t chunk = at / 16;
    switch (swizzle) {
    case 128:
        return (chunk / 8 * 8 + (chunk % 8 ^ chunk / 8 % 8)) * 16 + at % 16;
    case 64:
        return (chunk / 4 * 4 + (chunk % 4 ^ chunk / 8 % 4)) * 16 + at % 16;
    case 32:
        return (chunk / 2 * 2 + (chunk % 2 ^ chunk / 8 % 2)) * 16 + at % 16;
    default:
        return at;
    }
}

static void check_boxes(uint32_t row_bytes, uint8_t swizzle, const int32_t at[4]) {
    const uint32_t columns = 72, elements = columns * ROWS * PLANES * BATCH, width = row_bytes / 2;
    const uint32_t bytes = row_bytes * BOX_ROWS * BOX_PLANES;
    uint32_t *in = device_words(elements / 2), *out = device_words(elements / 2), *seen = device_words(bytes / 4);
    uint16_t *from = (uint16_t *)in, *to = (uint16_t *)out, *expected = malloc(elements * 2);
    copy_params p = {.seen = seen, .at = {at[0], at[1], at[2], at[3]}, .bytes = bytes};
    const fk_emu_tensor source = tensor_of(in, columns, row_bytes, swizzle),
                        target = tensor_of(out, columns, row_bytes, swizzle);
    fk_error err = {FK_OK, ""};
    assert_int_equal(fk_emu_tensor_map_encode(&p.from, &source, &err), FK_OK);
    assert_int_equal(fk_emu_tensor_map_encode(&p.to, &target, &err), FK_OK);
    for (uint32_t i = 0; i < elements; ++i)
        from[i] = (uint16_t)(i + 1);
    fk_emu_image *image = load_copy("tma_store_wait_read<0>()");
    for (uint64_t seed = 0; seed < 4; ++seed) {
        const fk_emu_options options = {.seed = seed, .poison = true, .check_races = true, .late_copies = seed & 1};
        memset(out, 0xff, elements * 2);
        memset(expected, 0xff, elements * 2);
        if (fk_emu_launch(image, &p, sizeof p, 1, 64, bytes + 16, &options, &err) != FK_OK) fail_msg("%s", err.text);
        for (uint32_t i = 0; i < bytes / 2; ++i) {
            const int32_t x = at[0] + (int32_t)(i % width), y = at[1] + (int32_t)(i / width % BOX_ROWS);
            const int32_t z = at[2] + (int32_t)(i / width / BOX_ROWS), b = at[3];
            const bool inside =
                x >= 0 && x < (int32_t)columns && y >= 0 && y < ROWS && z >= 0 && z < PLANES && b >= 0 && b < BATCH;
            const uint32_t element = inside ? (uint32_t)(((b * PLANES + z) * ROWS + y) * (int32_t)columns + x) : 0;
            uint16_t got;
            memcpy(&got, (char *)seen + place(2 * i, swizzle), 2);
            assert_int_equal(got, inside ? from[element] : 0);
            if (inside) expected[element] = from[element];
        }
        assert_memory_equal(to, expected, elements * 2);
    }
    fk_emu_unload(image);
    free(expected);
    fk_emu_free(in);
    fk_emu_free(out);
    fk_emu_free(seen);
}

static void test_boxes(void **state) {
    (void)state;
    static const uint8_t swizzles[] = {128, 64, 32, 0};
    static const int32_t at[][4] = {{0, 0, 0, 0}, {64, 4, 2, 1}, {-3, -2, -1, 0}, {0, 0, 0, 2}};
    for (size_t i = 0; i < sizeof swizzles; ++i)
        for (size_t j = 0; j < sizeof at / sizeof *at; ++j)
            check_boxes(swizzles[i] ? swizzles[i] : 48, swizzles[i], at[j]);
}

/* A stride of 0 shows the same rows again; dimensions of 1 and boxes wider than the tensor. */
static void test_flat_tensors(void **state) {
    (void)state;
    const uint32_t columns = 40, bytes = 128 * BOX_ROWS * BOX_PLANES;
    uint32_t *in = device_words(columns * ROWS / 2), *out = device_words(columns * ROWS / 2);
    uint32_t *seen = device_words(bytes / 4);
    uint16_t *from = (uint16_t *)in;
    for (uint32_t i = 0; i < columns * ROWS; ++i)
        from[i] = (uint16_t)(i + 1);
    fk_emu_image *image = load_copy("tma_store_wait_read<0>()");
    for (int kind = 0; kind < 2; ++kind) { /* all planes one and the same, all rows likewise; one plane of one row */
        fk_emu_tensor t = tensor_of(in, columns, 128, 128), to = tensor_of(out, columns, 128, 128);
        if (kind)
            t.dims[1] = t.dims[2] = t.dims[3] = 1;
        else
            t.strides[0] = t.strides[1] = 0;
        to.dims[2] = to.dims[3] = 1;
        copy_params p = {.seen = seen, .bytes = bytes};
        fk_error err = {FK_OK, ""};
        assert_int_equal(fk_emu_tensor_map_encode(&p.from, &t, &err), FK_OK);
        assert_int_equal(fk_emu_tensor_map_encode(&p.to, &to, &err), FK_OK);
        if (fk_emu_launch(image, &p, sizeof p, 1, 64, bytes + 16, &strict, &err) != FK_OK) fail_msg("%s", err.text);
        for (uint32_t i = 0; i < bytes / 2; ++i) {
            const uint32_t x = i % 64, y = i / 64 % BOX_ROWS, z = i / 64 / BOX_ROWS;
            uint16_t got;
            memcpy(&got, (char *)seen + place(2 * i, 128), 2);
            assert_int_equal(got, x < columns && (!kind || y + z == 0) ? x + 1 : 0);
        }
    }
    fk_emu_unload(image);
    fk_emu_free(in);
    fk_emu_free(out);
    fk_emu_free(seen);
}

/* A box of rows of so many columns that are there is stored, and the launch fails. */
static void refuse_store(uint32_t columns, const char *store_wait, const char *message) {
    uint32_t *memory = device_words(64 * ROWS * PLANES * BATCH / 2);
    copy_params p = {.seen = memory, .bytes = 128 * BOX_ROWS * BOX_PLANES};
    fk_emu_tensor tensor = tensor_of(memory, 64, 128, 128);
    fk_error err = {FK_OK, ""};
    tensor.dims[0] = columns;
    assert_int_equal(fk_emu_tensor_map_encode(&p.from, &tensor, &err), FK_OK);
    p.to = p.from;
    fk_emu_image *image = load_copy(store_wait);
    assert_int_equal(fk_emu_launch(image, &p, sizeof p, 1, 64, p.bytes + 16, &strict, &err), FK_LAUNCH_FAILED);
    assert_non_null(strstr(err.text, message));
    fk_emu_unload(image);
    fk_emu_free(memory);
}

static void test_store_without_wait(void **state) {
    (void)state;
    refuse_store(64, "(void)0", "exits while its tma_store from smem_base() + 0 is in flight");
}

/* The hardware writes the last 16 bytes of a row whole. */
static void test_store_of_broken_rows(void **state) {
    (void)state;
    refuse_store(62, "tma_store_wait_read<0>()", "tma_store: rows of 124 bytes, must be a multiple of 16");
}

/* ---- copies of what lies side by side ---------------------------------------------------------------------- */

enum { LINE_BYTES = 48, LINE_WORDS = LINE_BYTES / 4 };

static const char line_kernel[] =
    PROLOGUE "struct LineParams { const float *from; float *to; u32 skew; };\n"
             "extern \"C\" __global__ void fk_kernel(const __grid_constant__ LineParams p) {\n"
             "    const u32 s = smem_base(), bar = s + 1024, t = threadIdx.x;\n"
             "    if (t == 0) {\n"
             "        mbarrier_init(bar, 1); mbarrier_init_fence();\n"
             "        mbarrier_arrive_expect_tx(bar, 48);\n"
             "        bulk_load(s + 16 + p.skew, p.from + 4, 48, bar);\n"
             "    }\n"
             "    __syncthreads();\n"
             "    LOAD_WAIT;\n"
             "    if (t < 12) st_shared_u32(s + 256 + 4 * t, __float_as_uint(2.0f * "
             "__int_as_float((int)ld_shared_u32(s + 16 + 4 * t))));\n"
             "    __syncthreads();\n"
             "    if (t == 0) {\n"
             "        fence_proxy_async();\n"
             "        bulk_add_f32(p.to + 8, s + 256, 48);\n"
             "        bulk_add_f32(p.to + 8, s + 256, 16);\n"
             "        bulk_store(p.to + 24 + 12 * blockIdx.x, s + 256, 48);\n"
             "        tma_store_commit();\n"
             "        STORE_WAIT;\n"
             "    }\n"
             "}\n";

typedef struct line_params {
    const float *from;
    float *to;
    uint32_t skew;
} line_params;

static fk_status run_lines(const char *load_wait, const char *store_wait, const line_params *p, uint32_t blocks,
                           const fk_emu_options *options, fk_error *err) {
    char text[8192];
    snprintf(text, sizeof text, "#define LOAD_WAIT %s\n#define STORE_WAIT %s\n%s", load_wait, store_wait, line_kernel);
    fk_emu_image *image = load(text);
    const fk_status status = fk_emu_launch(image, p, sizeof *p, blocks, 32, 1040, options, err);
    fk_emu_unload(image);
    return status;
}

/* Every block adds; the words around are left alone. */
static void test_lines(void **state) {
    (void)state;
    float *from = (float *)device_words(4 + LINE_WORDS), *to = (float *)device_words(24 + 3 * LINE_WORDS);
    for (int i = 0; i < 4 + LINE_WORDS; ++i)
        from[i] = (float)(i * i);
    for (uint64_t seed = 0; seed < 4; ++seed) {
        const fk_emu_options options = {.seed = seed, .poison = true, .check_races = true, .late_copies = seed & 1};
        fk_error err = {FK_OK, ""};
        for (int i = 0; i < 24 + 3 * LINE_WORDS; ++i)
            to[i] = 1.0f;
        const line_params p = {from, to, 0};
        if (run_lines("mbarrier_wait(bar, 0)", "tma_store_wait_read<0>()", &p, 3, &options, &err) != FK_OK)
            fail_msg("%s", err.text);
        for (int i = 0; i < 8 + LINE_WORDS + 4; ++i) {
            const int word = i - 8, times = word < 0 || word >= LINE_WORDS ? 0 : word < 4 ? 4 : 2;
            assert_true(to[i] == 1.0f + 3.0f * (float)(times * (times ? (4 + word) * (4 + word) : 0)));
        }
        for (int i = 0; i < 3 * LINE_WORDS; ++i) /* and stores, in a place of its own */
            assert_true(to[24 + i] == (float)(2 * (4 + i % LINE_WORDS) * (4 + i % LINE_WORDS)));
    }
    fk_emu_free(from);
    fk_emu_free(to);
}

static void test_lines_refused(void **state) {
    (void)state;
    float *from = (float *)device_words(4 + LINE_WORDS), *to = (float *)device_words(24 + LINE_WORDS);
    const char *const wait = "mbarrier_wait(bar, 0)", *const store_wait = "tma_store_wait_read<0>()";
    const struct {
        const char *load_wait, *store_wait;
        line_params p;
        const char *words;
    } cases[] = {
        {"(void)0", store_wait, {from, to, 0}, "while the tma_load of thread 0 to it is in flight"},
        {wait, "(void)0", {from, to, 0}, "exits while its bulk_add_f32 from smem_base() + 256 is in flight"},
        {wait, store_wait, {from, to, 8}, "bulk_load: 48 bytes between"},
        {wait, store_wait, {from, to + 1, 0}, "bulk_add_f32: 48 bytes between"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; ++i) {
        const fk_emu_options late = {.seed = 1, .poison = true, .check_races = true, .late_copies = true};
        fk_error err = {FK_OK, ""};
        assert_int_equal(run_lines(cases[i].load_wait, cases[i].store_wait, &cases[i].p, 1, &late, &err),
                         FK_LAUNCH_FAILED);
        if (!strstr(err.text, cases[i].words)) fail_msg("no '%s' in: %s", cases[i].words, err.text);
    }
    fk_emu_free(from);
    fk_emu_free(to);
}

static void expect_refusal(const fk_emu_tensor *tensor, const char *words) {
    fk_emu_tensor_map map;
    fk_error err = {FK_OK, ""};
    assert_int_equal(fk_emu_tensor_map_encode(&map, tensor, &err), FK_BAD_ARGUMENT);
    if (!strstr(err.text, words)) fail_msg("no '%s' in: %s", words, err.text);
}

static void test_maps_refused(void **state) {
    (void)state;
    static _Alignas(16) char memory[32];
    const fk_emu_tensor good = tensor_of(memory, 64, 128, 128);
    fk_emu_tensor t = good;
    t.rank = 6, expect_refusal(&t, "rank is 6"), t = good;
    t.element_bytes = 3, expect_refusal(&t, "element_bytes is 3"), t = good;
    t.swizzle = 96, expect_refusal(&t, "swizzle is 96"), t = good;
    t.base = memory + 2, expect_refusal(&t, "must be 16-byte aligned"), t = good;
    t.dims[2] = 0, expect_refusal(&t, "dims[2] is 0"), t = good;
    t.box[1] = 257, expect_refusal(&t, "box[1] is 257"), t = good;
    t.strides[1] = 24, expect_refusal(&t, "strides[1] is 24"), t = good;
    t.strides[2] = 1ull << 40, expect_refusal(&t, "strides[2] is 1099511627776, must be less than 2^40"), t = good;
    t.box[0] = 12, expect_refusal(&t, "a row of the box is 24 bytes, must be a multiple of 16"), t = good;
    t.box[0] = 128, expect_refusal(&t, "a row of the box is 256 bytes, must be the swizzle's 128");
}

/* ---- named barriers ------------------------------------------------------------------------------------- */

/* Warp 0 hands numbers to warp 1 through two buffers; barriers 1 and 2: full, 3 and 4: empty. */
static const char pipeline[] = "const u32 lane = threadIdx.x % 32, s = smem_base() + 4 * lane;\n"
                               "if (threadIdx.x < 32)\n"
                               "    for (u32 k = 0; k < 6; ++k) {\n"
                               "        PRODUCER_WAIT(3 + k % 2, 64);\n"
                               "        st_shared_u32(s + k % 2 * 128, 100 * k + lane);\n"
                               "        PRODUCER_DONE(1 + k % 2, 64);\n"
                               "    }\n"
                               "else {\n"
                               "    named_barrier_arrive(3, 64); named_barrier_arrive(4, 64);\n"
                               "    for (u32 k = 0; k < 6; ++k) {\n"
                               "        CONSUMER_WAIT(1 + k % 2, 64);\n"
                               "        p.out[32 * k + lane] = ld_shared_u32((s ^ 64) + k % 2 * 128);\n"
                               "        if (k < 4) named_barrier_arrive(3 + k % 2, 64);\n"
                               "    }\n"
                               "}\n";

#define WAIT_EMPTY "\n#define PRODUCER_WAIT named_barrier_sync\n"
#define DONE "\n#define PRODUCER_DONE named_barrier_arrive\n"
#define WAIT_FULL "\n#define CONSUMER_WAIT named_barrier_sync\n"
#define NOTHING "(id, threads) (void)0\n"

static fk_status run_pipeline(const char *defines, uint64_t seed, uint32_t *out, fk_error *err) {
    char body[4096];
    snprintf(body, sizeof body, "%s%s", defines, pipeline);
    fk_emu_image *image = load_body(body);
    const params p = {out, NULL, 0};
    const fk_emu_options options = {.seed = seed, .poison = true, .check_races = true};
    const fk_status status = fk_emu_launch(image, &p, sizeof p, 1, 64, 256, &options, err);
    fk_emu_unload(image);
    return status;
}

static void expect_pipeline_fault(const char *defines, const char *words) {
    uint32_t *out = device_words(6 * 32);
    for (uint64_t seed = 0; seed < 4; ++seed) {
        fk_error err = {FK_OK, ""};
        assert_int_equal(run_pipeline(defines, seed, out, &err), FK_LAUNCH_FAILED);
        if (!strstr(err.text, words)) fail_msg("no '%s' in: %s", words, err.text);
    }
    fk_emu_free(out);
}

static void test_named_barriers(void **state) {
    (void)state;
    uint32_t *out = device_words(6 * 32);
    for (uint64_t seed = 0; seed < 4; ++seed) {
        fk_error err = {FK_OK, ""};
        memset(out, 0xff, 6 * 32 * 4);
        if (run_pipeline(WAIT_EMPTY DONE WAIT_FULL, seed, out, &err) != FK_OK) fail_msg("%s", err.text);
        for (uint32_t i = 0; i < 6 * 32; ++i)
            assert_int_equal(out[i], 100 * (i / 32) + (i % 32 ^ 16));
    }
    fk_emu_free(out);
    expect_pipeline_fault("#define PRODUCER_DONE" NOTHING WAIT_EMPTY WAIT_FULL,
                          "at named barrier 1, to which 32 of 64 threads have come");
    expect_pipeline_fault("#define CONSUMER_WAIT" NOTHING "#define PRODUCER_DONE" NOTHING WAIT_EMPTY,
                          "race at smem_base() + ");
}

/* Warp 3 names tiles to the others through two words of shared memory, each behind a full and an empty mbarrier; the
 * others read them in all lanes, and one lane says so for its warp. */
static const char slots[] =
    "const u32 warp = threadIdx.x / 32, lane = threadIdx.x % 32, s = smem_base();\n"
    "if (threadIdx.x == 0) {\n"
    "    for (u32 i = 0; i < 2; ++i) { mbarrier_init(s + 8 * i, 1); mbarrier_init(s + 16 + 8 * i, 3); }\n"
    "    mbarrier_init_fence();\n"
    "}\n"
    "__syncthreads();\n"
    "for (u32 k = 0; k < 9; ++k) {\n"
    "    const u32 i = k % 2, parity = k / 2 % 2, full = s + 8 * i, empty = s + 16 + 8 * i, slot = s + 32 + 8 * i;\n"
    "    if (warp == 3) {\n"
    "        if (lane) continue;\n"
    "        WAIT_EMPTY(empty, parity ^ 1);\n"
    "        st_shared_u32(slot, 100 + k);\n"
    "        mbarrier_arrive(full);\n"
    "    } else {\n"
    "        WAIT_FULL(full, parity);\n"
    "        p.out[96 * k + threadIdx.x] = ld_shared_u32(slot);\n"
    "        __syncwarp();\n"
    "        if (lane == 0) mbarrier_arrive(empty);\n"
    "    }\n"
    "}\n";

static fk_status run_slots(const char *defines, uint64_t seed, uint32_t *out, fk_error *err) {
    char body[4096];
    snprintf(body, sizeof body, "%s%s", defines, slots);
    fk_emu_image *image = load_body(body);
    const params p = {out, NULL, 0};
    const fk_emu_options options = {.seed = seed, .poison = true, .check_races = true};
    const fk_status status = fk_emu_launch(image, &p, sizeof p, 1, 128, 64, &options, err);
    fk_emu_unload(image);
    return status;
}

static void test_words_behind_mbarriers(void **state) {
    (void)state;
    uint32_t *out = device_words(9 * 96);
    for (uint64_t seed = 0; seed < 6; ++seed) {
        fk_error err = {FK_OK, ""};
        memset(out, 0xff, 9 * 96 * 4);
        if (run_slots("#define WAIT_EMPTY mbarrier_wait\n#define WAIT_FULL mbarrier_wait\n", seed, out, &err) != FK_OK)
            fail_msg("%s", err.text);
        for (uint32_t i = 0; i < 9 * 96; ++i)
            assert_int_equal(out[i], 100 + i / 96);
        static const char *const broken[] = {"#define WAIT_EMPTY" NOTHING "#define WAIT_FULL mbarrier_wait\n",
                                             "#define WAIT_EMPTY mbarrier_wait\n#define WAIT_FULL" NOTHING};
        for (int i = 0; i < 2; ++i) {
            assert_int_equal(run_slots(broken[i], seed, out, &err), FK_LAUNCH_FAILED);
            if (!strstr(err.text, "race at") && !strstr(err.text, "already has its") && !strstr(err.text, "deadlock"))
                fail_msg("%s", err.text);
        }
    }
    fk_emu_free(out);
}

static void expect_body_fault(const char *body, const char *words) {
    fk_emu_image *image = load_body(body);
    const params p = {NULL, NULL, 0};
    fk_error err = {FK_OK, ""};
    assert_int_equal(fk_emu_launch(image, &p, sizeof p, 1, 128, 1024, &strict, &err), FK_LAUNCH_FAILED);
    if (!strstr(err.text, words)) fail_msg("no '%s' in: %s", words, err.text);
    fk_emu_unload(image);
}

static void test_misuse_of_barriers(void **state) {
    (void)state;
    expect_body_fault("named_barrier_sync(0, 128);", "barrier 0, must be 1 to 15");
    expect_body_fault("named_barrier_sync(1, 48);", "barrier 1 is for 48 threads, must be a multiple of 32 up to 128");
    expect_body_fault("named_barrier_sync(1, threadIdx.x < 32 ? 64 : 128);", "where others came to it");
    expect_body_fault("mbarrier_wait(smem_base() + 8, 0);", "no mbarrier_init has made one at smem_base() + 8");
    expect_body_fault("if (threadIdx.x == 0) mbarrier_init(smem_base(), 1);"
                      "__syncthreads(); mbarrier_wait(smem_base(), 2);",
                      "parity 2, must be 0 or 1");
    expect_body_fault("if (threadIdx.x == 0) mbarrier_init(smem_base(), 1);"
                      "__syncthreads(); if (threadIdx.x == 0) {"
                      "mbarrier_arrive_expect_tx(smem_base(), 16); mbarrier_arrive(smem_base()); }",
                      "phase 0 of the mbarrier at smem_base() + 0 already has its 1 arrivals");
}

/* What the warps of a warpgroup, or the lanes of a warp, do not do together. */
static void test_wgmma_disagreement(void **state) {
    (void)state;
    static const char operands[] = "float acc[4] = {}; const u32 warp = threadIdx.x / 32;"
                                   "const u64 d = wgmma_descriptor<128>(smem_base(), 16, 1024);";
    char body[512];
    snprintf(body, sizeof body, "%s wgmma_m64k16_bf16<8, 8>(acc, d, d + threadIdx.x %% 2, true);", operands);
    expect_body_fault(body, "name different operands");
    snprintf(body, sizeof body,
             "%s u32 a[1][4] = {}; if (warp) wgmma_m64k16_bf16<8>(acc, a, d, true); wgmma_wait<0>(acc);", operands);
    expect_body_fault(body, "warps 0 and 1 of a warpgroup have issued different wgmmas");
    snprintf(body, sizeof body, "%s u32 a[1][4] = {}; wgmma_m64k16_bf16<8>(acc, a, d, true);", operands);
    expect_body_fault(body, "warp 0 exited with a wgmma accumulator in flight");
    snprintf(body, sizeof body,
             "%s u32 a[1][4] = {}; wgmma_m64k16_bf16<8>(acc, a, d, true); acc[2] = 0; wgmma_wait<0>(acc);", operands);
    expect_body_fault(body, "register 2 of a wgmma accumulator was written in lane 0 while in flight");
    snprintf(body, sizeof body, "%s wgmma_m64k16_bf16<8, 0>(acc, d, 0, true); wgmma_wait<0>(acc);", operands);
    expect_body_fault(body, "wgmma: a transposed operand has rows of 16 bytes, must have 128");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_boxes),
        cmocka_unit_test(test_flat_tensors),
        cmocka_unit_test(test_store_without_wait),
        cmocka_unit_test(test_store_of_broken_rows),
        cmocka_unit_test(test_lines),
        cmocka_unit_test(test_lines_refused),
        cmocka_unit_test(test_maps_refused),
        cmocka_unit_test(test_named_barriers),
        cmocka_unit_test(test_words_behind_mbarriers),
        cmocka_unit_test(test_misuse_of_barriers),
        cmocka_unit_test(test_wgmma_disagreement),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
