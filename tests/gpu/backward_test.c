/* The backward pass on a real GPU: known shapes, the limits of grid and address arithmetic, plans for other GPUs, and
 * determinism. Skips itself, by name, without a GPU. */
#include "runtime/backward_sample.h"

static void run(const sample *s) {
    fk_context_options options = FK_CONTEXT_OPTIONS_INIT;
    fk_context *context;
    fk_kernel_info info;
    options.device = "cuda:0", options.plan_for = s->plan_for, options.cache_mode = FK_CACHE_OFF;
    if (fk_context_create(&options, &context)) fail_msg("%s", fk_last_error());
    if (!backward_run(context, s, &info, NULL)) print_message("%s: skipped, too little device memory\n", s->spelling);
    fk_context_destroy(context);
}

static void known_shapes(void **state) {
    (void)state;
    static const sample samples[] = {
        {"bwd fp16 d64", NULL, 2, 4, 4, 512, 512, FK_BSHD, 0},
        {"bwd bf16 d128 causal", NULL, 1, 4, 4, 1000, 1000, FK_BHSD, 0},
        {"bwd fp16 d128 gqa causal", NULL, 1, 8, 2, 333, 777, FK_BSHD, 0},
        {"bwd bf16 d256 causal", NULL, 1, 2, 2, 300, 300, FK_BSHD, 0},
        {"bwd fp16 d8", NULL, 1, 1, 1, 1, 1, FK_BSHD, 0},
        {"bwd fp16 d96 dv40 causal top-left", NULL, 2, 3, 3, 257, 129, FK_BHSD, 0},
        {"bwd bf16 d64 keep=\"k <= q && (q - k) % 4 == 0\"", NULL, 1, 2, 2, 700, 700, FK_BSHD, 0},
        {"bwd fp16 d64 window(100,0)", NULL, 1, 2, 2, 900, 900, FK_BSHD, 0},
    };
    for (size_t i = 0; i < sizeof samples / sizeof *samples; i++)
        run(&samples[i]);
}

static void plans_for_other_gpus(void **state) {
    (void)state;
    static const sample samples[] = {
        {"bwd fp16 d64 causal", "t4", 1, 4, 4, 500, 500, FK_BSHD, 0},
        {"bwd fp16 d128 gqa", "t4", 1, 4, 2, 200, 300, FK_BHSD, 0},
        {"bwd bf16 d64 causal", "a100", 1, 4, 4, 500, 500, FK_BSHD, 0},
        {"bwd bf16 d128 causal", "rtx3090", 1, 4, 4, 500, 500, FK_BSHD, 0},
    };
    for (size_t i = 0; i < sizeof samples / sizeof *samples; i++)
        run(&samples[i]);
}

/* Enough CTAs that the order in which they would add differs from run to run. */
static void deterministic(void **state) {
    (void)state;
    run(&(sample){"bwd bf16 d64 causal deterministic", NULL, 2, 8, 8, 1500, 1500, FK_BSHD, 0});
    run(&(sample){"bwd fp16 d128 gqa deterministic", NULL, 1, 8, 2, 700, 1100, FK_BHSD, 0});
    run(&(sample){"bwd bf16 d256 causal deterministic", NULL, 1, 2, 2, 300, 500, FK_BSHD, 0});
    run(&(sample){"bwd fp16 d96 dv40 window(100,30) deterministic", NULL, 1, 4, 4, 700, 700, FK_BSHD, 0});
    run(&(sample){"bwd fp16 d64 causal deterministic", "t4", 1, 4, 4, 500, 500, FK_BSHD, 0});
    run(&(sample){"bwd bf16 d128 causal deterministic", "rtx3090", 1, 4, 4, 500, 500, FK_BSHD, 0});
}

/* 76,800 heads: more than the y and z of a grid hold. */
static void many_heads(void **state) {
    (void)state;
    run(&(sample){"bwd fp16 d16", NULL, 300, 256, 256, 17, 17, FK_BHSD, 0});
}

/* Rows 2^20 elements apart: the last element of each tensor lies beyond 2^31. */
static void huge_tensors(void **state) {
    (void)state;
    run(&(sample){"bwd fp16 d64 causal", NULL, 1, 1, 1, 2100, 2100, FK_BSHD, 1 << 20});
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(known_shapes), cmocka_unit_test(plans_for_other_gpus), cmocka_unit_test(deterministic),
        cmocka_unit_test(many_heads),   cmocka_unit_test(huge_tensors),
    };
    fk_device_info device;
    if (fk_device_find("cuda:0", &device)) {
        printf("skipped: gpu/backward_test needs a GPU: %s\n", fk_last_error());
        return 77;
    }
    printf("on %s, sm_%d\n", device.name, device.sm);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
