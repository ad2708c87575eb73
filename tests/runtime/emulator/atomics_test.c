/* Words of global memory that all blocks change: sums without an order, and tiles handed out; pairs and halves; the
 * second kernel of an image. */
#include "harness.h"

static uint32_t *out;

static fk_status launch(const char *body, uint32_t blocks, const char *os_threads, const fk_emu_options *options,
                        fk_error *err) {
    fk_emu_image *image = load_body(body);
    const params p = {out, NULL, 0};
    memset(out, 0, 4096);
    setenv("FLASHKILN_EMU_THREADS", os_threads, 1);
    const fk_status status = fk_emu_launch(image, &p, sizeof p, blocks, 128, 64, options, err);
    unsetenv("FLASHKILN_EMU_THREADS");
    fk_emu_unload(image);
    return status;
}

static void test_sums(void **state) {
    (void)state;
    fk_error err = {FK_OK, ""};
    const char *body = "float *f = (float *)p.out; red_add_f32(f + threadIdx.x % 2, 1.0f);"
                       "const float v[4] = {(float)threadIdx.x, 0.5f, 0, 0}; red_add_f32x4(f + 8, v);"
                       "red_add_u64((u64 *)p.out + 8, 0x80000001ull << (threadIdx.x % 2));";
    for (uint64_t seed = 0; seed < 3; ++seed) {
        const fk_emu_options options = {.seed = seed};
        if (launch(body, 50, "4", &options, &err) != FK_OK) fail_msg("%s", err.text);
        float sums[12];
        memcpy(sums, out, sizeof sums);
        assert_true(sums[0] == 64 * 50 && sums[1] == 64 * 50);
        assert_true(sums[8] == 127 * 64 * 50 && sums[9] == 64 * 50 && sums[10] == 0);
        uint64_t words; /* carries reach the upper half */
        memcpy(&words, out + 16, sizeof words);
        assert_true(words == 64 * 50 * (0x80000001u + 0x100000002u));
    }
}

/* Blocks stay and fetch tiles, as templates/piece/claims.cu has it: words 0 and 1 say for which launch the
 * counters in words 2 and 3 count, of each side; from word 16 on, how often each tile was fetched. */
static void test_claims(void **state) {
    (void)state;
    static const char body[] =
        "u64 *claims = (u64 *)p.out; if (threadIdx.x) return;"
        "const u64 count = claims[1], seen = ld_acquire_u64(claims), own = p.n;"
        "if (seen != own) cas_u64x2(claims, seen, count, own, 0);"
        "const u32 sided = own % 2; bool last_side = !sided; u32 side = sided ? blockIdx.x / 3 % 2 : 0;"
        "const u32 first = gridDim.x, last_claim = 298 + (sided ? first : 0);"
        "auto next = [&] {"
        "    const u32 last = (last_claim - side) >> sided, claimed = atom_inc_u32((u32 *)(claims + 1) + side, last);"
        "    if (claimed == last) st_release_u64(claims, 0);"
        "    return first + (claimed << sided) + side;"
        "};"
        "for (u32 tile = blockIdx.x; tile < 299;) {"
        "    atom_inc_u32(p.out + 16 + tile, 1000);"
        "    tile = next();"
        "    if (tile >= 299 && !last_side) last_side = true, side ^= 1, tile = next();"
        "}";
    fk_emu_image *image = load_body(body);
    memset(out, 0xff, 4096);
    memset(out + 16, 0, 299 * 4);
    for (uint64_t seed = 0; seed < 8; ++seed) {
        fk_error err = {FK_OK, ""};
        const fk_emu_options options = {.seed = seed, .check_races = true, .poison = true};
        const uint64_t pair =
            seed / 2; /* two launches with one number, as a graph repeats it; every other pair sided */
        const params p = {out, NULL, (int64_t)(2 * (7 + pair) + pair % 2)};
        setenv("FLASHKILN_EMU_THREADS", seed % 4 ? "4" : "1", 1);
        if (fk_emu_launch(image, &p, sizeof p, 12, 32, 0, &options, &err) != FK_OK) fail_msg("%s", err.text);
        unsetenv("FLASHKILN_EMU_THREADS");
        assert_true(out[0] == 0 && out[1] == 0 && out[2] == 0 && out[3] == 0); /* closed, and begins anew */
        for (uint32_t i = 0; i < 299; ++i)
            assert_int_equal(out[16 + i], seed + 1);
    }
    fk_emu_unload(image);
}

/* Blocks in turns, in the order in which they have claimed them. The last thread of a block makes its first wait for
 * it. */
static void test_turns(void **state) {
    (void)state;
    static const char body[] =
        "const u32 smem = smem_base(); u32 *turn = p.out, *count = p.out + 1, *list = p.out + 8;"
        "if (threadIdx.x == 0) { mbarrier_init(smem, 1); mbarrier_init(smem + 8, 32); } __syncthreads();"
        "if (threadIdx.x / 32 == 1) { mbarrier_wait(smem, 0); mbarrier_arrive(smem + 8);"
        "    if (threadIdx.x == 63) st_release_u32(p.out + 100 + blockIdx.x, 7); return; }"
        "if (threadIdx.x) return;"
        "const u32 own = atom_inc_u32(count, 1000); mbarrier_arrive(smem);"
        "while (ld_acquire_u32(p.out + 100 + blockIdx.x) != 7) {}"
        "while (ld_acquire_u32(turn) != own) {}"
        "mbarrier_wait(smem + 8, 0); list[own] = list[own - 1] * 3 + own; st_release_u32(turn, own + 1);";
    fk_emu_image *image = load_body(body);
    uint32_t want[41] = {1};
    for (uint32_t i = 1; i < 41; ++i)
        want[i] = want[i - 1] * 3 + i;
    for (uint64_t seed = 0; seed < 8; ++seed) {
        fk_error err = {FK_OK, ""};
        const fk_emu_options options = {.seed = seed, .check_races = true, .poison = true};
        const params p = {out, NULL, 0};
        memset(out, 0, 4096);
        out[0] = out[1] = out[8] = 1;
        setenv("FLASHKILN_EMU_THREADS", seed % 4 ? "4" : "1", 1);
        if (fk_emu_launch(image, &p, sizeof p, 40, 64, 64, &options, &err) != FK_OK) fail_msg("%s", err.text);
        unsetenv("FLASHKILN_EMU_THREADS");
        assert_memory_equal(out + 8, want, sizeof want);
    }
    fk_emu_unload(image);
}

static void test_returned_words(void **state) {
    (void)state;
    fk_error err = {FK_OK, ""};
    const char *body =
        "if (threadIdx.x) return; u64 *w = (u64 *)p.out + 2; u32 *r = p.out + 8;"
        "st_release_u64(w, 5000000000); st_release_u64(w + 1, 6); cas_u64x2(w, 1, 6, 2, 3); cas_u64x2(w, 5000000000, "
        "7, 2, 3);"
        "r[0] = ld_acquire_u64(w) == 5000000000; r[1] = ld_acquire_u64(w + 1) == 6;"
        "cas_u64x2(w, 5000000000, 6, ~0ull, 8); r[2] = ld_acquire_u64(w) == ~0ull; r[3] = ld_acquire_u64(w + 1) == 8;"
        "for (u32 i = 0; i < 4; ++i) r[4 + i] = atom_inc_u32(p.out, 2);"
        "p.out[1] = 9; r[8] = atom_inc_u32(p.out + 1, 2);";
    if (launch(body, 1, "1", NULL, &err) != FK_OK) fail_msg("%s", err.text);
    static const uint32_t want[] = {1, 1, 1, 1, 0, 1, 2, 0, 9};
    assert_memory_equal(out + 8, want, sizeof want);
    assert_true(out[0] == 1 && out[1] == 0);
}

static void test_pairs_from_shared_memory(void **state) {
    (void)state;
    fk_error err = {FK_OK, ""};
    const char *body =
        "if (threadIdx.x < 16) st_shared_u32(smem_base() + 4 * threadIdx.x, __float_as_uint(threadIdx.x * 0.5f));"
        "__syncthreads();"
        "if (threadIdx.x < 8) { const float2 v = ld_shared_f32x2(smem_base() + 8 * threadIdx.x);"
        "p.out[threadIdx.x] = (u32)(10 * v.x + 1000 * v.y); }";
    if (launch(body, 1, "1", &strict, &err) != FK_OK) fail_msg("%s", err.text);
    for (uint32_t i = 0; i < 8; ++i)
        assert_int_equal(out[i], 10 * i + 1000 * i + 500);
}

static void test_halves(void **state) {
    (void)state;
    fk_error err = {FK_OK, ""};
    const char *body =
        "if (threadIdx.x) return; const float2 a = unpack_fp16(0xbc003e00u), b = unpack_bf16(0xc0403f00u);"
        "p.out[0] = __float_as_uint(a.x); p.out[1] = __float_as_uint(a.y);"
        "p.out[2] = __float_as_uint(b.x); p.out[3] = __float_as_uint(b.y);";
    if (launch(body, 1, "1", &strict, &err) != FK_OK) fail_msg("%s", err.text);
    const float want[4] = {1.5f, -1, 0.5f, -3};
    assert_memory_equal(out, want, sizeof want);
}

static void test_alignment(void **state) {
    (void)state;
    static const char *const cases[][2] = {
        {"ld_shared_f32x2(smem_base() + 4);", "ld_shared_f32x2: shared address smem_base() + 4 is not 8-byte aligned"},
        {"const float v[4] = {}; red_add_f32x4((float *)p.out + 2, v);", "red_add_f32x4: global address"},
        {"red_add_f32((float *)((char *)p.out + 2), 0);", "red_add_f32: global address"},
        {"red_add_u64((u64 *)(p.out + 1), 0);", "red_add_u64: global address"},
        {"atom_inc_u32((u32 *)((char *)p.out + 2), 0);", "atom_inc_u32: global address"},
        {"cas_u64x2((u64 *)p.out + 1, 0, 0, 1, 1);", "cas_u64x2: global address"},
        {"ld_acquire_u64((u64 *)(p.out + 1));", "ld_acquire_u64: global address"},
        {"st_release_u64((u64 *)(p.out + 1), 0);", "st_release_u64: global address"},
        {"ld_acquire_u32((u32 *)((char *)p.out + 2));", "ld_acquire_u32: global address"},
        {"st_release_u32((u32 *)((char *)p.out + 2), 0);", "st_release_u32: global address"}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; ++i) {
        fk_error err = {FK_OK, ""};
        assert_int_equal(launch(cases[i][0], 1, "1", NULL, &err), FK_LAUNCH_FAILED);
        assert_non_null(strstr(err.text, cases[i][1]));
    }
}

/* A block that faults leaves others what they need. */
static void test_fault(void **state) {
    (void)state;
    fk_error err = {FK_OK, ""};
    assert_int_equal(launch("cas_u64x2((u64 *)1048576, 0, 0, 1, 1);", 1, "1", NULL, &err), FK_LAUNCH_FAILED);
    assert_non_null(strstr(err.text, "0x100000"));
    if (launch("cas_u64x2((u64 *)p.out, 0, 0, 1, 1);", 1, "1", NULL, &err) != FK_OK) fail_msg("%s", err.text);
}

static void test_several_kernels_of_an_image(void **state) {
    (void)state;
    static const char *const entries[] = {"first", "second"};
    const char *text =
        PROLOGUE "struct Pair { u32 *out; u32 a, b; };"
                 "extern \"C\" __global__ void first(const __grid_constant__ Params p) { p.out[0] = 7; }"
                 "extern \"C\" __global__ void second(const __grid_constant__ Pair p) { p.out[1] = p.a * p.b; }";
    void *bytes = NULL;
    size_t size = 0;
    double ms = 0;
    char compiler[96];
    fk_emu_image *image = NULL;
    fk_error err = {FK_OK, ""};
    if (fk_emu_compile(text, entries, 2, NULL, &bytes, &size, &ms, compiler, &err) ||
        fk_emu_load(bytes, size, &image, &err))
        fail_msg("%s", err.text);
    free(bytes);
    const params p = {out, NULL, 0};
    const struct {
        uint32_t *out;
        uint32_t a, b;
    } pair = {out, 6, 9};
    const fk_emu_grid one = {1, 1, 1, 1};
    memset(out, 0, 64);
    assert_int_equal(fk_emu_launch_grid(image, "second", &pair, sizeof pair, one, 32, 0, NULL, NULL, &err), FK_OK);
    assert_true(out[0] == 0 && out[1] == 54);
    assert_int_equal(fk_emu_launch_grid(image, "first", &p, sizeof p, one, 32, 0, NULL, NULL, &err), FK_OK);
    assert_int_equal(out[0], 7);
    assert_int_equal(fk_emu_launch_grid(image, "second", &p, sizeof p, one, 32, 0, NULL, NULL, &err), FK_BAD_ARGUMENT);
    assert_non_null(strstr(err.text, "param_bytes is 24, the kernel takes 16"));
    assert_int_equal(fk_emu_launch_grid(image, "third", &p, sizeof p, one, 32, 0, NULL, NULL, &err), FK_BAD_ARGUMENT);
    assert_non_null(strstr(err.text, "entry is \"third\""));
    fk_emu_unload(image);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_sums),
        cmocka_unit_test(test_turns),
        cmocka_unit_test(test_claims),
        cmocka_unit_test(test_returned_words),
        cmocka_unit_test(test_pairs_from_shared_memory),
        cmocka_unit_test(test_halves),
        cmocka_unit_test(test_alignment),
        cmocka_unit_test(test_fault),
        cmocka_unit_test(test_several_kernels_of_an_image),
    };
    out = device_words(1024);
    const int failed = cmocka_run_group_tests(tests, NULL, NULL);
    fk_emu_free(out);
    return failed;
}
