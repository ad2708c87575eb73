/* Keys and values of 8 bits beside queries of 16, on the emulator. */
#include "kv_e4m3_sample.h"
#include "store.h"

static void bits_are_those_of_the_same_values_in_16(void **state) {
    (void)state;
    static const kv_sample samples[] = {
        {"d128 gqa split", "h200", "mma m16 n32 w1 s1 c4 r1", 2, 8, 2, 3, 200, 0, 3},
        {"d128 gqa causal split", "h200", "mma m32 n64 w2 s2 c2", 1, 4, 1, 7, 333, 0, 1},
        {"d64 gqa split paged(16)", "h200", "mma m16 n32 w1 s1 c8 r1", 2, 4, 2, 1, 300, 64, 4},
        {"d64 causal paged(64)", "a100", "mma m64 n64 w4 s1 c2", 1, 2, 2, 100, 270, 128, 0},
        {"d64 window(40,0) split paged(32)", "h200", "mma m32 n32 w2 s1 c4 r1", 1, 2, 2, 90, 250, 32, 2},
        {"d128 paged split", "h200", "mma m16 n32 w1 s2 c2 r1", 2, 2, 2, 2, 150, 7, 2},
        {"d64 keep=\"(q + k) % 64 < 40\" paged(16)", "a100", "mma m64 n64 w4 s2 c2", 1, 2, 2, 70, 400, 16, 0},
        {"d72 dv40 softcap(5)", "a100", "mma m64 n64 w4 s2 c2 r1", 1, 2, 2, 70, 130, 0, 0},
        {"d256 causal", "a100", "mma m64 n32 w4 s1 c1", 1, 2, 2, 66, 90, 0, 0},
        {"d64 dropout", "a100", "mma m128 n64 w4 s1 c2", 1, 2, 2, 130, 140, 0, 0},
        {"d128 gqa split", "t4", "mma m32 n32 w2 s1 c2 r1", 1, 4, 2, 5, 100, 0, 2},
        {"d64 causal", "h200", "wgmma m128 n64 w20 s4 c1 q2 k4 o2", 2, 2, 2, 200, 333, 0, 0},
        {"d128 gqa causal", "h200", "wgmma m128 n128 w12 s2 c1 r1 q2 k3 t1 o1", 2, 4, 2, 150, 300, 0, 0},
        {"d128 gqa window(40,0)", "h200", NULL, 1, 4, 2, 90, 250, 0, 0},
        {"d72 dv40 softcap(5)", "h200", NULL, 1, 2, 2, 70, 130, 0, 0},
        {"d256 dropout", "h200", NULL, 1, 2, 2, 66, 190, 0, 0},
        {"d64 keep=\"(q + k) % 64 < 40\" paged(8)", "h200", "wgmma m128 n64 w20 s4 c1 q2 k4 o2", 2, 2, 2, 70, 400, 24,
         0},
        {"d128 gqa causal paged(16)", "h200", NULL, 2, 2, 1, 70, 333, 48, 0},
    };
    for (size_t i = 0; i < sizeof samples / sizeof *samples; i++)
        kv_compare(&samples[i], "emu", store_dir);
}

/* Powers of two lose nothing: k's count as the scale does, v's multiply o. */
static void descales_count(void **state) {
    (void)state;
    static const kv_sample samples[] = {{"d64", "a100", NULL, 1, 2, 2, 60, 100, 0, 0},
                                        {"d128 gqa causal split", "h200", NULL, 2, 4, 2, 3, 200, 0, 3},
                                        {"d64 softcap(5)", "a100", NULL, 1, 2, 2, 60, 100, 0, 0},
                                        {"d64 score=\"s - 0.25 * abs(q - k)\"", "h200", NULL, 1, 2, 2, 60, 100, 0, 0},
                                        {"d128 gqa window(50,0)", "h200", NULL, 1, 4, 2, 200, 300, 0, 0}};
    for (size_t i = 0; i < sizeof samples / sizeof *samples; i++) {
        const kv_sample *s = &samples[i];
        kv_options how = {
            .device = "emu", .store = store_dir, .type = "kv_e4m3", .bf16 = true, .softmax_scale = 0.125f};
        kv_result plain = kv_run(s, &how, NULL, NULL);
        how.softmax_scale = 0.5f, how.k_descale = 0.25f, how.v_descale = 8;
        kv_result scaled = kv_run(s, &how, NULL, NULL);
        for (size_t j = 0; j < plain.elements; j++)
            plain.o[j] = fk_bf16_from_float(8 * fk_bf16_to_float(plain.o[j]));
        kv_assert_same(s, &scaled, &plain, true);
        how.k_descale = 0.5f;
        kv_result other = kv_run(s, &how, NULL, NULL);
        assert_memory_not_equal(other.lse, plain.lse, plain.rows * sizeof(float));
        kv_free(&plain), kv_free(&scaled), kv_free(&other);
    }
}

/* Of either family and element: where rows lie changes no bit. */
static void pages_are_as_rows(void **state) {
    (void)state;
    static const struct {
        const char *type, *pages;
        kv_sample rows;
    } cases[] = {
        {"e4m3",
         "paged(16)",
         {"d128 gqa causal", "h200", "wgmma m192 n96 w16 s4 c1 q2 k4 t1 o1", 2, 4, 2, 200, 333, 48, 0}},
        {"e4m3", "paged(8)", {"d64", "h200", "wgmma m128 n64 w20 s4 c1 q2 k4 o2", 2, 2, 2, 130, 205, 8, 0}},
        {"e4m3", "paged(64)", {"d256 fast", "h200", "wgmma m128 n128 w12 s2 c1 q1 k2 o1", 1, 2, 2, 140, 300, 64, 0}},
        {"e4m3", "paged(32)", {"d128 fast softcap(20)", "h200", NULL, 1, 2, 2, 140, 300, 96, 0}},
        {"e4m3", "paged", {"d64 gqa split", "h200", "mma m16 n32 w1 s1 c8 r1", 2, 4, 2, 2, 300, 5, 3}},
        {"", "paged(16)", {"d128 softcap(20)", "h200", NULL, 1, 2, 2, 140, 300, 48, 0}}, /* of 16 bits, too */
        {"", "paged(8)", {"d64 softcap(20) causal gqa", "h200", NULL, 2, 4, 2, 70, 333, 8, 0}},
        {"kv_e4m3", "paged(16)", {"d128 gqa split", "a100", "mma m32 n64 w2 s1 c4", 2, 4, 2, 2, 300, 16, 3}},
        {"kv_e4m3",
         "paged",
         {"d128 gqa causal", "h200", "wgmma m128 n128 w12 s2 c1 r1 q2 k3 t1 o1", 2, 4, 2, 70, 333, 5, 0}},
        {"kv_e4m3", "paged", {"d64 softcap(20) causal", "h200", NULL, 2, 2, 2, 70, 333, 7, 0}},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const kv_options how = {.device = "emu", .store = store_dir, .type = cases[i].type, .bf16 = true};
        char words[128];
        kv_sample in_pages = cases[i].rows;
        snprintf(words, sizeof words, "%s %s", cases[i].rows.words, cases[i].pages);
        in_pages.words = words;
        kv_result rows = kv_run(&cases[i].rows, &how, NULL, NULL), pages = kv_run(&in_pages, &how, NULL, NULL);
        kv_assert_same(&in_pages, &pages, &rows, true);
        kv_free(&rows), kv_free(&pages);
    }
}

/* The kernel before writes the keys that bounds of the mask leave to some query, and no others. */
static void what_no_query_sees_is_left(void **state) {
    (void)state;
    enum { KEYS = 600, QUERIES = 10, DIM = 64, FIRST = 512 }; /* of the tile with key 600 - 10 - 20 */
    fk_problem p;
    fk_context_options options = FK_CONTEXT_OPTIONS_INIT;
    fk_context *context;
    fk_kernel *kernel;
    fk_args a = FK_ARGS_INIT;
    static uint16_t q[QUERIES * DIM], o[QUERIES * DIM];
    static uint8_t k[KEYS * DIM], v[KEYS * DIM];
    options.device = "emu", options.plan_for = "h200", options.cache_dir = store_dir;
    options.planning.plan = "wgmma m128 n64 w20 s4 c1 q2 k4 o2";
    assert_int_equal(fk_problem_parse("fwd fp16 kv_e4m3 d64 window(20,0)", &p), FK_OK);
    if (fk_context_create(&options, &context) || fk_kernel_create(context, &p, &kernel))
        fail_msg("%s", fk_last_error());
    a.batch = a.num_heads_q = a.num_heads_kv = 1, a.seqlen_q = QUERIES, a.seqlen_k = KEYS;
    assert_int_equal(fk_args_layout(&p, FK_BSHD, &a), FK_OK);
    sample_fill(q, QUERIES * DIM, false, 1);
    kv_fill(k, sizeof k, 2), kv_fill(v, sizeof v, 3);
    void *const on_device[] = {kv_upload(context, q, sizeof q), kv_upload(context, k, sizeof k),
                               kv_upload(context, v, sizeof v), kv_upload(context, o, sizeof o)};
    a.q = on_device[0], a.k = on_device[1], a.v = on_device[2], a.o = on_device[3];
    const size_t bytes = fk_kernel_workspace(kernel, &a), elements = (size_t)KEYS * DIM;
    uint8_t *host = malloc(bytes);
    void *workspace = host ? kv_upload(context, memset(host, 0xff, bytes), bytes) : NULL;
    if (fk_execute(kernel, &a, workspace, bytes, NULL) || fk_synchronize(context, NULL) ||
        fk_copy_from_device(context, host, workspace, bytes))
        fail_msg("%s", fk_last_error());
    const uint16_t *const wide[] = {(const uint16_t *)(const void *)(host + bytes) - 2 * elements,
                                    (const uint16_t *)(const void *)(host + bytes) - elements};
    for (size_t i = 0; i < elements; i++) {
        const bool seen = i >= (size_t)FIRST * DIM;
        assert_int_equal(wide[0][i], seen ? fk_fp16_from_float(fk_e4m3_to_float(k[i])) : 0xffff);
        assert_int_equal(wide[1][i], seen ? fk_fp16_from_float(fk_e4m3_to_float(v[i])) : 0xffff);
    }
    for (int i = 0; i < 4; i++)
        fk_device_free(context, on_device[i]);
    fk_device_free(context, workspace);
    free(host);
    fk_kernel_destroy(kernel);
    fk_context_destroy(context);
}

static void all_bytes(void **state) {
    (void)state;
    kv_all_bytes("emu", "a100", true); /* the emulator has but one conversion */
    kv_all_bytes("emu", "h200", true);
}

static void problems_that_are_none(void **state) {
    (void)state;
    static const char *const cases[][2] = {
        {"fwd e4m3 kv_e4m3 d64", "kv_e4m3 is 1: must be 0 for dtype e4m3: fp16 and bf16 have it"},
        {"fwd fp32 kv_e4m3 d64", "kv_e4m3 is 1: must be 0 for dtype fp32: fp16 and bf16 have it"},
        {"bwd bf16 kv_e4m3 d64", "kv_e4m3 is 1: must be 0 for bwd"},
        {"fwd bf16 kv_e4m3 fast d64", "fast is 1: must be 0 with kv_e4m3"},
        {"fwd bf16 kv_e4m3 d64 kv_e4m3", "kv_e4m3 is given twice"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        fk_problem p;
        assert_int_equal(fk_problem_parse(cases[i][0], &p), FK_BAD_PROBLEM);
        if (!strstr(fk_last_error(), cases[i][1])) fail_msg("%s, not %s", fk_last_error(), cases[i][1]);
    }
}

static void refusals(void **state) {
    (void)state;
    fk_problem p, other;
    fk_context_options options = {sizeof options, .device = "emu", .planning = FK_PLAN_OPTIONS_INIT};
    fk_context *context;
    fk_kernel *kernel;
    static uint16_t q[64], o[64];
    static uint8_t k[72];
    static const float one = 1;
    options.cache_dir = store_dir;
    assert_int_equal(fk_problem_parse("fwd fp16 kv_e4m3 d64", &p), FK_OK);
    assert_int_equal(fk_problem_parse("fwd fp16 d64", &other), FK_OK);
    assert_int_equal(fk_context_create(&options, &context), FK_OK);
    assert_int_equal(fk_kernel_create(context, &p, &kernel), FK_OK);
    fk_args a = {sizeof a, .batch = 1, .num_heads_q = 1, .num_heads_kv = 1, .seqlen_q = 1, .seqlen_k = 1};
    assert_int_equal(fk_args_layout(&p, FK_BSHD, &a), FK_OK);
    a.q = q, a.k = a.v = k, a.o = o;
    const struct {
        const float *q_descale;
        const uint8_t *k;
        int64_t stride;
        const char *says;
    } cases[] = {
        {&one, k, 64, "q_descale is given; it must be null unless dtype is e4m3"},
        {NULL, k + 4, 64, "it must be aligned to 8 bytes"},
        {NULL, k, 68, "k_stride[1] (seqlen) is 68; it must be a multiple of 8 elements"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        a.q_descale = cases[i].q_descale, a.k = cases[i].k, a.k_stride[1] = cases[i].stride;
        assert_int_equal(fk_execute(kernel, &a, NULL, 0, NULL), FK_BAD_ARGUMENT);
        if (!strstr(fk_last_error(), cases[i].says)) fail_msg("%s, not %s", fk_last_error(), cases[i].says);
    }
    a.k_stride[1] = 72, a.k_descale = &one; /* rows of 72 bytes */
    assert_int_equal(fk_execute(kernel, &a, NULL, 0, NULL), FK_OK);
    fk_kernel_destroy(kernel);
    assert_int_equal(fk_kernel_create(context, &other, &kernel), FK_OK);
    static const uint16_t wide[64];
    a.k = a.v = wide, a.k_stride[1] = 64;
    assert_int_equal(fk_execute(kernel, &a, NULL, 0, NULL), FK_BAD_ARGUMENT);
    assert_non_null(strstr(fk_last_error(), "k_descale is given; it must be null unless k and v are e4m3"));
    fk_kernel_destroy(kernel);
    fk_context_destroy(context);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(bits_are_those_of_the_same_values_in_16),
                                       cmocka_unit_test(descales_count),
                                       cmocka_unit_test(pages_are_as_rows),
                                       cmocka_unit_test(what_no_query_sees_is_left),
                                       cmocka_unit_test(all_bytes),
                                       cmocka_unit_test(problems_that_are_none),
                                       cmocka_unit_test(refusals)};
    return cmocka_run_group_tests(tests, make_store, remove_store);
}
