/* Gradients of declared arrays on a real GPU: each way of summing them, plans for other GPUs, and the same bits in 50
 * runs of deterministic problems. Skips itself, by name, without a GPU. */
#include "runtime/array_grads_sample.h"

#define USER "array=slope:float[h] score=\"s + 0.1 * tanh(s) - abs(q - k) * slope[h]\" grad=slope"

static void run(const grad_sample *s) {
    fk_context_options options = FK_CONTEXT_OPTIONS_INIT;
    fk_context *context;
    options.device = "cuda:0", options.plan_for = s->plan_for, options.cache_mode = FK_CACHE_OFF;
    if (fk_context_create(&options, &context)) fail_msg("%s", fk_last_error());
    grad_run(context, s, 50);
    fk_context_destroy(context);
}

static void samples(void **state) {
    (void)state;
    static const grad_sample all[] = {
        {"bwd bf16 d64 " USER, NULL, 2, 4, 4, 500, 700, false},
        {"bwd fp16 d64 gqa " USER, "t4", 1, 4, 2, 300, 300, false},
        {"bwd bf16 d128 gqa " USER " causal", "a100", 1, 4, 2, 300, 300, false},
        {"bwd fp16 d128 bias grad=bias", NULL, 2, 2, 2, 300, 260, false},
        {"bwd bf16 d64 bias grad=bias causal", NULL, 2, 2, 2, 300, 260, true},
        {"bwd fp16 d16 bias grad=bias", NULL, 2, 4, 4, 70, 3, GRAD_PADDED}, /* rows end within 16 bytes */
        {"bwd bf16 d64 bias grad=bias", NULL, 2, 2, 2, 300, 259, GRAD_PADDED},
        {"bwd bf16 d128 bias grad=bias causal", NULL, 2, 2, 2, 300, 258, GRAD_SUMMED | GRAD_PADDED},
        {"bwd bf16 d64 array=bias:bf16[b][h][q][k] grad=bias bias causal", NULL, 2, 2, 2, 300, 264, true},
        {"bwd fp16 d64 bias grad=bias", NULL, 6, 4, 4, 300, 301, true}, /* rows that are copied before */
        {"bwd bf16 d128 array=bias:bf16[b][h][q][k] grad=bias bias", NULL, 6, 4, 4, 300, 301, true},
        {"bwd fp16 d64 array=u:float[q] array=v:float[k] score=\"s + u[q] * v[k]\" grad=u grad=v", "rtx3090", 1, 2, 2,
         300, 450, false},
        {"bwd bf16 d128 relative(30) grad=table", NULL, 1, 2, 2, 500, 500, false},
        {"bwd bf16 d64 gqa sink softcap(4) grad=sink causal", NULL, 2, 4, 2, 600, 300, false},
    };
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        run(&all[i]);
}

static void deterministic(void **state) {
    (void)state;
    static const grad_sample all[] = {
        {"bwd bf16 d64 deterministic " USER, NULL, 4, 8, 8, 700, 700, false},
        {"bwd fp16 d128 deterministic bias grad=bias causal", NULL, 4, 2, 2, 400, 400, true},
        {"bwd bf16 d64 deterministic relative(60) sink grad=table grad=sink", NULL, 4, 4, 4, 500, 500, true},
    };
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        run(&all[i]);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(samples), cmocka_unit_test(deterministic)};
    fk_device_info device;
    if (fk_device_find("cuda:0", &device)) {
        printf("skipped: gpu/array_grads_test needs a GPU: %s\n", fk_last_error());
        return 77;
    }
    printf("on %s, sm_%d\n", device.name, device.sm);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
