/* The backward pass on the emulator, the whole way: one small case of each kind of path. Broad random coverage is
 * tests/random_problems.c. */
#include "backward_sample.h"

static void run(const sample *s) {
    fk_context_options options = FK_CONTEXT_OPTIONS_INIT;
    fk_context *context;
    fk_kernel_info info;
    options.device = "emu", options.plan_for = s->plan_for, options.cache_mode = FK_CACHE_OFF;
    if (fk_context_create(&options, &context)) fail_msg("%s", fk_last_error());
    assert_true(backward_run(context, s, &info));
    assert_string_equal(info.image.target, "emu");
    fk_context_destroy(context);
}

static void samples(void **state) {
    (void)state;
    static const sample all[] = {
        {"bwd fp16 d32 causal", "a100", 1, 2, 2, 200, 200, FK_BSHD, 0},
        {"bwd bf16 d64 gqa causal", "a100", 2, 4, 2, 70, 150, FK_BHSD, 0},
        {"bwd fp16 d40 dv24", "rtx3090", 1, 1, 1, 65, 33, FK_BSHD, 72},
        {"bwd fp16 d64 causal top-left", "t4", 1, 2, 2, 130, 70, FK_BSHD, 0},
        {"bwd fp16 d64 keep=\"k <= q && (q - k) % 4 == 0\"", "a100", 1, 1, 1, 150, 150, FK_BSHD, 0},
    };
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        run(&all[i]);
}

/* CTAs take turns, whatever the schedule: several OS threads run them. */
static void deterministic(void **state) {
    (void)state;
    setenv("FLASHKILN_EMU_THREADS", "4", 1);
    run(&(sample){"bwd bf16 d64 causal deterministic", "a100", 1, 2, 2, 300, 300, FK_BSHD, 0});
    unsetenv("FLASHKILN_EMU_THREADS");
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(samples), cmocka_unit_test(deterministic)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
