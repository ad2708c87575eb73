/* Rows of few keys on Hopper where rows refer to an estimate and not to their maximum: weights are multiplied as
 * rounded, and a row that sees one key has its value to the last bit, as eager has, whatever the weight is. */
#include "emulated.h"
#include "sample.h"
#include "scratch.h"

static char store_dir[256];

/* A scale of 0: 1 / sqrt(head_dim). */
static void run(const sample *s, float scale) {
    const emulated as = {"2", "0", "0"};
    fk_context *context = emulated_context("h200", store_dir, &as);
    fk_kernel *kernel;
    fk_kernel_info info;
    sample_tensors t;
    assert_true(sample_make(context, s, &t));
    t.args.softmax_scale = t.host.softmax_scale = scale;
    if (fk_kernel_create(context, &t.p, &kernel)) fail_msg("%s: %s", s->spelling, fk_last_error());
    assert_int_equal(fk_kernel_describe(kernel, &info), FK_OK);
    assert_string_equal(info.plan.family, "wgmma");
    if (launch_once(context, kernel, &t.args)) fail_msg("%s: %s", s->spelling, fk_last_error());
    sample_fetch(context, s, &t);
    sample_check(s, &t);
    fk_kernel_destroy(kernel);
    sample_free(context, &t);
    fk_context_destroy(context);
}

/* Of rows that are one tile of keys long. Eager's error is 0 there, so the limit is as good as 0. */
static void one_key(void **state) {
    (void)state;
    static const sample cases[] = {
        {"fwd bf16 d64 window(0,0)", "h200", 2, 2, 2, 50, 50, FK_BSHD, 0},
        {"fwd bf16 d128 keep=\"(q ^ k) == 0\"", "h200", 1, 2, 2, 60, 60, FK_BSHD, 0},
        {"fwd bf16 d64 gqa window(0,0)", "h200", 1, 4, 2, 33, 64, FK_BHSD, 0},
        {"fwd bf16 d64 keep=\"k == q * 3 + 1\"", "h200", 1, 1, 1, 30, 60, FK_BSHD, 0}, /* some see none */
        {"fwd fp16 d96 causal keep=\"(q + diag - k) % 7 == 0\" top-left", "h200", 1, 4, 4, 3, 1207, FK_BSHD, 0},
        {"fwd bf16 d128 dropout keep=\"(q ^ k) == 3 && q % 3 != 1\"", "h200", 1, 1, 1, 60, 60, FK_BSHD, 0},
    };
    for (size_t i = 0; i < emulated_cases(sizeof cases / sizeof *cases); i++)
        run(&cases[i], 0);
}

/* Large scores: the estimate is wrong, and masked tiles are computed once more under a maximum that rises. */
static void rising_maximum(void **state) {
    (void)state;
    static const sample cases[] = {
        {"fwd fp16 d128 keep=\"(q - k) % 3 != 1\"", "h200", 1, 1, 1, 200, 700, FK_BSHD, 0},
        {"fwd bf16 d128 keep=\"(q - k) % 3 != 1\"", "h200", 1, 1, 1, 200, 700, FK_BSHD, 0},
        {"fwd fp16 d64 window(200,10)", "h200", 1, 1, 1, 300, 300, FK_BSHD, 0},
    };
    static const float scales[] = {0.3f, 1, 4};
    for (size_t i = 0; i < emulated_cases(sizeof cases / sizeof *cases); i++)
        for (size_t j = 0; j < sizeof scales / sizeof *scales; j++)
            run(&cases[i], scales[j]);
}

static int start(void **state) {
    (void)state;
    return scratch_make(store_dir, sizeof store_dir) ? 0 : -1;
}

static int stop(void **state) {
    (void)state;
    return scratch_remove(store_dir) ? 0 : -1;
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(one_key), cmocka_unit_test(rising_maximum)};
    return cmocka_run_group_tests(tests, start, stop);
}
