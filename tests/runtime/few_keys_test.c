/* Rows of few keys on Hopper where rows refer to an estimate and not to their maximum: weights are multiplied as
 * rounded, and a row that sees one key has its value to the last bit, as eager has, whatever the weight is. */
#include "emulated.h"
#include "sample.h"
#include "store.h"

static void run(const sample *s, float softmax_scale) {
    fk_context *context = emulated_context("h200", store_dir, &(emulated){"2", "0", "0"});
    fk_kernel_info info;
    assert_true(sample_run_scaled(context, s, softmax_scale, &info));
    assert_string_equal(info.plan.family, "wgmma");
    fk_context_destroy(context);
}

/* Of rows that are one tile of keys long, and of any that bounds leave one. Eager's error is 0 there, so the limit is
 * as good as 0. */
static void one_key(void **state) {
    (void)state;
    static const sample cases[] = {
        {"fwd bf16 d64 window(0,0)", "h200", 2, 2, 2, 50, 50, FK_BSHD, 0},
        {"fwd bf16 d64 window(0,0)", "h200", 1, 1, 1, 700, 650, FK_BSHD, 0},
        {"fwd fp16 d128 chunked(1)", "h200", 1, 2, 2, 300, 520, FK_BSHD, 0},
        {"fwd bf16 d64 gqa window(0,0)", "h200", 2, 4, 2, 300, 300, FK_BSHD, 0},
        {"fwd bf16 d96 window(0,0) dropout", "h200", 1, 1, 1, 300, 300, FK_BSHD, 0},
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

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(one_key), cmocka_unit_test(rising_maximum)};
    return cmocka_run_group_tests(tests, make_store, remove_store);
}
