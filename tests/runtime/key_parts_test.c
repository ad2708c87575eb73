/* Backward kernels whose tiles of keys come in parts of the queries, on the emulator: results against float64, in how
 * many parts, and who gets such a kernel. */
#include "array_sample.h"
#include "backward_sample.h"
#include "emulated.h"
#include "runtime/parts.h"
#include "store.h"

/* The results of two schedules: dk and dv have the same bits, as the parts' sums are added in their order; dq as well
 * where that is asked for. */
static void run(const sample *s, const char *sms, int splits) {
    const fk_shape shape = {s->batch, s->num_heads_q, s->num_heads_kv, s->seqlen_q, s->seqlen_k};
    uint16_t *first[3] = {NULL};
    for (int turn = 0; turn < 2; turn++) {
        const emulated how = {sms, turn ? "7" : "3", turn ? "1" : "0"};
        fk_context *context = emulated_context(s->plan_for, store_dir, &how);
        fk_kernel *kernel = emulated_kernel(context, s->spelling, &shape);
        fk_persistent tiles;
        backward_tensors t;
        array_sample arrays;
        assert_true(kernel->info.plan.parts);
        assert_true(backward_make(context, s, &t));
        arrays_make(context, &t.p, &t.host, &t.args, &arrays);
        tiles.num_splits = fk_num_leading_parts(kernel, &t.args);
        if (fk_is_persistent(kernel)) assert_true(fk_persistent_lay_out(kernel, &t.args, &tiles));
        assert_int_equal(tiles.num_splits, splits);
        t.workspace_bytes = fk_kernel_workspace(kernel, &t.args);
        assert_true(backward_allocate(context, t.workspace_bytes, &t.workspace));
        backward_forward(context, s, &t);
        backward_execute(context, s, &t, kernel);
        backward_check(s, &t);
        for (int n = t.p.deterministic ? 0 : 1; n < 3; n++) {
            const size_t bytes = t.rows[BWD_DQ + n] * t.dim[BWD_DQ + n] * 2;
            if (turn == 0) {
                first[n] = malloc(bytes);
                assert_non_null(first[n]);
                memcpy(first[n], t.data[BWD_DQ + n], bytes);
            } else {
                assert_memory_equal(first[n], t.data[BWD_DQ + n], bytes);
            }
        }
        fk_kernel_destroy(kernel);
        arrays_free(context, &arrays);
        backward_free(context, &t);
        fk_context_destroy(context);
    }
    for (int n = 0; n < 3; n++)
        free(first[n]);
}

static void in_parts(void **state) {
    (void)state;
    static const struct {
        sample s;
        const char *sms;
        int splits;
    } cases[] = {
        {{"bwd bf16 d64 gqa causal", "h200", 1, 4, 1, 700, 700, FK_BSHD, 0}, "132", 12},
        {{"bwd fp16 d64 gqa", "h200", 1, 6, 2, 513, 300, FK_BHSD, 0}, "12", 2},
        {{"bwd bf16 d64 causal deterministic", "h200", 1, 2, 2, 900, 900, FK_BSHD, 0}, "40", 3},
        {{"bwd bf16 d128 gqa causal", "h200", 2, 4, 2, 600, 500, FK_BSHD, 0}, "132", 6},
        {{"bwd fp16 d128 gqa dropout", "h200", 1, 4, 1, 450, 700, FK_BHSD, 0}, "132", 16},
        {{"bwd bf16 d128 gqa causal top-left softcap(20)", "h200", 1, 4, 1, 500, 900, FK_BSHD, 0}, "132", 16},
        {{"bwd fp16 d128 gqa window(200,100)", "h200", 1, 4, 1, 900, 800, FK_BSHD, 0}, "132", 14},
        {{"bwd bf16 d64 gqa causal window(300,0)", "h200", 1, 8, 1, 1000, 1000, FK_BHSD, 0}, "132", 16},
        /* one tile of queries, whose heads are shared out */
        {{"bwd bf16 d64 gqa", "h200", 1, 8, 1, 64, 500, FK_BSHD, 0}, "132", 8},
        {{"bwd bf16 d256 gqa causal", "h200", 1, 4, 1, 600, 600, FK_BSHD, 0}, "132", 10}, /* clusters of two */
        {{"bwd bf16 d256 gqa deterministic", "h200", 1, 2, 1, 700, 400, FK_BSHD, 0}, "132", 11},
        /* arrays say who sees a key */
        {{"bwd bf16 d64 gqa bits", "h200", 1, 8, 2, 200, 330, FK_BSHD, 0}, "132", 8},
        {{"bwd bf16 d128 gqa causal bits deterministic", "h200", 1, 4, 1, 300, 300, FK_BSHD, 0}, "132", 12},
        {{"bwd fp16 d64 gqa key_padding", "h200", 2, 4, 1, 200, 300, FK_BHSD, 0}, "132", 8},
        {{"bwd bf16 d64 gqa document causal", "h200", 1, 4, 1, 500, 500, FK_BSHD, 0}, "132", 16},
        {{"bwd bf16 d256 gqa bits", "h200", 1, 4, 1, 300, 300, FK_BSHD, 0}, "132", 10},
        /* family mma */
        {{"bwd bf16 d64 gqa causal", "a100", 1, 8, 1, 700, 700, FK_BSHD, 0}, "108", 16},
        {{"bwd fp16 d128 gqa dropout", "a100", 1, 4, 1, 500, 700, FK_BHSD, 0}, "108", 16},
        {{"bwd fp16 d64 gqa", "t4", 1, 4, 1, 700, 700, FK_BSHD, 0}, "40", 3},
        {{"bwd fp16 d256 gqa causal", "a100", 1, 4, 1, 400, 400, FK_BSHD, 0}, "108", 14},
        {{"bwd bf16 d64 gqa bits causal", "a100", 1, 4, 1, 300, 300, FK_BSHD, 0}, "108", 16},
    };
    for (size_t i = 0; i < emulated_cases(sizeof cases / sizeof *cases); i++)
        run(&cases[i].s, cases[i].sms, cases[i].splits);
}

/* How many parts each tile comes in, on 132 SMs. */
static void how_many(void **state) {
    (void)state;
    static const emulated plain = {"132", "0", "0"};
    static const struct {
        const char *spelling;
        fk_shape shape;
        int splits; /* 0: no kernel that can */
    } cases[] = {
        {"bwd bf16 d128 causal gqa", {1, 8, 1, 8192, 8192}, 8},
        {"bwd bf16 d128 causal gqa", {1, 8, 2, 4096, 4096}, 4},
        {"bwd bf16 d128 causal gqa", {1, 32, 8, 2048, 2048}, 2},
        {"bwd bf16 d128 causal gqa", {1, 32, 8, 4096, 4096}, 1},
        {"bwd bf16 d128 causal gqa", {4, 32, 8, 4096, 4096}, 0},
        {"bwd bf16 d64 gqa", {1, 4, 2, 4096, 4096}, 2},
        {"bwd bf16 d64 gqa", {1, 8, 2, 320, 320}, 12},
        {"bwd bf16 d64 gqa", {1, 8, 1, 64, 1200}, 8},
        {"bwd bf16 d64 gqa", {2, 8, 1, 320, 320}, 12},
        {"bwd bf16 d64", {1, 4, 4, 4096, 4096}, 1},
        {"bwd bf16 d64", {1, 1, 1, 1024, 1024}, 8},
        {"bwd bf16 d64", {1, 2, 2, 256, 256}, 0},
        {"bwd bf16 d64 causal", {1, 2, 2, 64, 4096}, 0},
        {"bwd bf16 d64 causal", {8, 16, 16, 2048, 2048}, 0},
        {"bwd bf16 d64 causal", {1, 16, 16, 2048, 2048}, 0},
        {"bwd bf16 d256 gqa", {1, 4, 1, 3072, 3072}, 8},
        {"bwd bf16 d64 window(128,0)", {1, 2, 2, 4096, 4096}, 0},
        {"bwd bf16 d128 window(1024,0) gqa", {1, 8, 1, 8192, 8192}, 4},
        {"bwd bf16 d128 window(1024,0) gqa", {4, 32, 8, 8192, 8192}, 0},
        {"bwd bf16 d64 window(-300,900) gqa", {1, 8, 1, 2048, 2048}, 8},
        {"bwd bf16 d64 dilated(2) gqa", {1, 8, 1, 8192, 8192}, 0},
        {"bwd bf16 d128 bits gqa", {1, 8, 2, 2048, 2048}, 4},
        {"bwd bf16 d128 bits causal gqa", {1, 32, 8, 1024, 1024}, 4},
    };
    fk_context *context = emulated_context("h200", store_dir, &plain);
    fk_device_info runs;
    assert_int_equal(fk_context_devices(context, &runs, NULL), FK_OK);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const fk_shape *s = &cases[i].shape;
        fk_problem p;
        fk_plan_info plan;
        assert_int_equal(fk_problem_parse(cases[i].spelling, &p), FK_OK);
        assert_int_equal(fk_plan_for(context, &p, s, &plan), FK_OK);
        const int splits = plan.parts ? fk_key_parts_choose(&p, &plan, &runs, s, 0) : 0;
        assert_int_equal(splits, cases[i].splits);
    }
    fk_context_destroy(context);
}

/* Who sees a key by an expression or a mask with values, the runtime does not know. */
static void refused(void **state) {
    (void)state;
    static const char *const spellings[] = {"bwd bf16 d64 dilated(2)",         "bwd bf16 d64 packed seqused_k",
                                            "bwd bf16 d64 seqused_k",          "bwd bf16 d64 bias grad=bias",
                                            "bwd bf16 d64 keep=\"k < q + 9\"", "bwd bf16 d64 butterfly(64)"};
    fk_plan_options options = FK_PLAN_OPTIONS_INIT;
    fk_problem p;
    fk_plan_info *plans;
    size_t count;
    options.plan = "wgmma m128 n128 w12 s2 c1 q2 k2 o1 p1";
    for (size_t i = 0; i < sizeof spellings / sizeof *spellings; i++) {
        assert_int_equal(fk_problem_parse(spellings[i], &p), FK_OK);
        assert_int_equal(fk_plan_list(&p, "h200", &options, &plans, &count), FK_UNSUPPORTED);
        if (!strstr(fk_last_error(), "parts 1: must be 0")) fail_msg("%s", fk_last_error());
    }
    options.plan = "mma m64 n64 w4 s1 c1 p1"; /* whose CTAs are counted on Hopper, and elsewhere not */
    assert_int_equal(fk_problem_parse("bwd bf16 d64", &p), FK_OK);
    assert_int_equal(fk_plan_list(&p, "h200", &options, &plans, &count), FK_UNSUPPORTED);
    assert_int_equal(fk_plan_list(&p, "a100", &options, &plans, &count), FK_OK);
    fk_free(plans);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(how_many),
        cmocka_unit_test(in_parts),
        cmocka_unit_test(refused),
    };
    return cmocka_run_group_tests(tests, make_sized_store, remove_store);
}
