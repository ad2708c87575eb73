/* dtype fp32 on the emulator, whose products of parts truncate sums: one case of each kind of path. Broad random
 * coverage is tests/random_problems.c. */
#include "fp32_sample.h"

static fk_context *open_context(const char *plan_for) {
    fk_context_options options = FK_CONTEXT_OPTIONS_INIT;
    fk_context *context;
    options.device = "emu", options.plan_for = plan_for, options.cache_mode = FK_CACHE_OFF;
    if (fk_context_create(&options, &context)) fail_msg("%s", fk_last_error());
    return context;
}

static void samples(void **state) {
    (void)state;
    static const fp32_sample all[] = {
        {"fwd fp32 d32 causal", "a100", 1, 2, 2, 150, 150, 0},
        {"fwd fp32 d64 gqa", "h200", 1, 4, 2, 100, 700, 4}, /* a long sum */
        {"fwd fp32 d24 dv200 window(40,3)", "rtx3090", 1, 1, 1, 130, 90, 12},
        {"fwd fp32 d256 causal", "rtx3090", 1, 1, 1, 70, 70, 0},
        {"bwd fp32 d64 causal", "a100", 1, 2, 2, 130, 130, 4},
        {"bwd fp32 d128 gqa", "h200", 1, 4, 2, 70, 100, 0},
        {"bwd fp32 d40 dv72 keep=\"k <= q && (q - k) % 4 == 0\"", "l4", 1, 1, 1, 100, 100, 8},
        {"bwd fp32 d64 deterministic", "a100", 1, 1, 1, 200, 170, 0},
    };
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        fk_context *context = open_context(all[i].plan_for);
        fp32_run(context, &all[i]);
        fk_context_destroy(context);
    }
}

static void rows_of_few_keys(void **state) {
    (void)state;
    fk_context *context = open_context("h200");
    fp32_single_keys(context);
    fp32_low_last_keys(context);
    fp32_large_scores(context);
    fk_context_destroy(context);
}

/* A matter of numbers of four floats, where 16-bit tensors have eight. */
static void strides(void **state) {
    (void)state;
    static float memory[4096] __attribute__((aligned(16)));
    fk_context *context = open_context("a100");
    fk_problem p;
    fk_kernel *kernel;
    fk_args a = FK_ARGS_INIT;
    a.batch = a.num_heads_q = a.num_heads_kv = 1;
    a.seqlen_q = a.seqlen_k = 16;
    a.q = a.k = a.v = memory;
    a.o = memory + 2048;
    assert_int_equal(fk_problem_parse("fwd fp32 d32", &p), FK_OK);
    assert_int_equal(fk_kernel_create(context, &p, &kernel), FK_OK);
    assert_int_equal(fk_args_layout(&p, FK_BSHD, &a), FK_OK);
    a.q_stride[1] = 36;
    assert_int_equal(fk_execute(kernel, &a, NULL, 0, NULL), FK_OK);
    a.q_stride[1] = 34;
    assert_int_equal(fk_execute(kernel, &a, NULL, 0, NULL), FK_BAD_ARGUMENT);
    assert_non_null(strstr(fk_last_error(), "q_stride[1] (seqlen) is 34; it must be a multiple of 4 elements"));
    a.q_stride[1] = 32;
    a.o = memory + 496; /* within the last row of q */
    assert_int_equal(fk_execute(kernel, &a, NULL, 0, NULL), FK_BAD_ARGUMENT);
    assert_non_null(strstr(fk_last_error(), "overlaps q"));
    fk_kernel_destroy(kernel);
    fk_context_destroy(context);
}

static void no_bf16(void **state) {
    (void)state;
    fk_context *context = open_context("t4");
    fk_problem p;
    fk_kernel *kernel;
    assert_int_equal(fk_problem_parse("bwd fp32 d64", &p), FK_OK);
    assert_int_equal(fk_kernel_create(context, &p, &kernel), FK_UNSUPPORTED);
    assert_non_null(strstr(fk_last_error(), "dtype fp32: the tensor cores of sm_75 have no bf16"));
    fk_context_destroy(context);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(samples), cmocka_unit_test(rows_of_few_keys),
                                       cmocka_unit_test(strides), cmocka_unit_test(no_bf16)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
