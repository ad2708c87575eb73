/* dtype fp32 on a real GPU, whose tensor cores add as they do: the errors are printed. Skips itself, by name,
 * without a GPU that has bf16. */
#include "runtime/fp32_sample.h"

#include <stdio.h>

static void run(const fp32_sample *s) {
    fk_context_options options = FK_CONTEXT_OPTIONS_INIT;
    fk_context *context;
    options.device = "cuda:0", options.plan_for = s->plan_for, options.cache_mode = FK_CACHE_OFF;
    if (fk_context_create(&options, &context)) fail_msg("%s", fk_last_error());
    fp32_run(context, s);
    fk_context_destroy(context);
}

static void known_shapes(void **state) {
    (void)state;
    static const fp32_sample samples[] = {
        {"bwd fp32 d64", NULL, 2, 4, 4, 512, 512, 0},
        {"bwd fp32 d128 causal", NULL, 1, 4, 4, 1000, 1000, 4},
        {"bwd fp32 d128 gqa causal", NULL, 1, 8, 2, 333, 777, 0},
        {"bwd fp32 d256 causal", NULL, 1, 2, 2, 300, 300, 0},
        {"bwd fp32 d96 dv40 causal top-left", NULL, 2, 3, 3, 257, 129, 12},
        {"bwd fp32 d64 window(100,0) deterministic", NULL, 1, 2, 2, 900, 900, 0},
        {"fwd fp32 d64", NULL, 1, 1, 1, 100, 6000, 0}, /* a long sum */
    };
    for (size_t i = 0; i < sizeof samples / sizeof *samples; i++)
        run(&samples[i]);
}

static void plans_for_other_gpus(void **state) {
    (void)state;
    static const fp32_sample samples[] = {
        {"bwd fp32 d64 causal", "a100", 1, 4, 4, 500, 500, 0},
        {"bwd fp32 d128 gqa", "rtx3090", 1, 4, 2, 200, 300, 0},
    };
    for (size_t i = 0; i < sizeof samples / sizeof *samples; i++)
        run(&samples[i]);
}

static void rows_of_few_keys(void **state) {
    (void)state;
    fk_context_options options = FK_CONTEXT_OPTIONS_INIT;
    fk_context *context;
    options.device = "cuda:0", options.cache_mode = FK_CACHE_OFF;
    if (fk_context_create(&options, &context)) fail_msg("%s", fk_last_error());
    fp32_single_keys(context);
    fp32_low_last_keys(context);
    fp32_large_scores(context);
    fk_context_destroy(context);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(known_shapes), cmocka_unit_test(plans_for_other_gpus),
                                       cmocka_unit_test(rows_of_few_keys)};
    fk_device_info device;
    if (fk_device_find("cuda:0", &device)) {
        printf("skipped: gpu/fp32_test needs a GPU: %s\n", fk_last_error());
        return 77;
    }
    if (device.sm < 80) {
        printf("skipped: gpu/fp32_test needs bf16, from sm_80 on; this is sm_%d\n", device.sm);
        return 77;
    }
    return cmocka_run_group_tests(tests, NULL, NULL);
}
