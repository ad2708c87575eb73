/* The forward pass on a real GPU: known shapes, the limits of grid and address arithmetic, plans for other GPUs, and
 * what a launch costs the host. Skips itself, by name, without a GPU. */
#include "runtime/sample.h"

#include "runtime/clock.h"

static fk_context *open_context(const char *plan_for) {
    fk_context_options options = FK_CONTEXT_OPTIONS_INIT;
    fk_context *context;
    options.device = "cuda:0", options.plan_for = plan_for, options.cache_mode = FK_CACHE_OFF;
    if (fk_context_create(&options, &context)) fail_msg("%s", fk_last_error());
    return context;
}

static void run(const sample *s) {
    fk_context *context = open_context(s->plan_for);
    fk_kernel_info info;
    if (!sample_run(context, s, &info)) print_message("%s: skipped, too little device memory\n", s->spelling);
    fk_context_destroy(context);
}

static void known_shapes(void **state) {
    (void)state;
    static const sample samples[] = {
        {"fwd fp16 d64", NULL, 2, 4, 4, 512, 512, FK_BSHD, 0},
        {"fwd bf16 d128 causal", NULL, 1, 4, 4, 1000, 1000, FK_BHSD, 0},
        {"fwd fp16 d128 gqa causal", NULL, 1, 8, 2, 333, 777, FK_BSHD, 0},
        {"fwd bf16 d256 causal", NULL, 1, 2, 2, 300, 300, FK_BSHD, 0},
        {"fwd fp16 d8", NULL, 1, 1, 1, 1, 1, FK_BSHD, 0},
        {"fwd fp16 d96 dv40 causal top-left", NULL, 2, 3, 3, 257, 129, FK_BHSD, 0},
        {"fwd bf16 d64 keep=\"k <= q && (q - k) % 4 == 0\"", NULL, 1, 2, 2, 700, 700, FK_BSHD, 0},
        {"fwd fp16 d64 window(100,0)", NULL, 1, 2, 2, 900, 900, FK_BSHD, 0},
    };
    for (size_t i = 0; i < sizeof samples / sizeof *samples; i++)
        run(&samples[i]);
}

static void plans_for_other_gpus(void **state) {
    (void)state;
    static const sample samples[] = {
        {"fwd fp16 d64 causal", "t4", 1, 4, 4, 500, 500, FK_BSHD, 0},
        {"fwd fp16 d128 gqa", "t4", 1, 4, 2, 200, 300, FK_BHSD, 0},
        {"fwd bf16 d64 causal", "a100", 1, 4, 4, 500, 500, FK_BSHD, 0},
        {"fwd bf16 d128 causal", "rtx3090", 1, 4, 4, 500, 500, FK_BSHD, 0},
    };
    for (size_t i = 0; i < sizeof samples / sizeof *samples; i++)
        run(&samples[i]);
}

/* 76,800 heads: more than the y and z of a grid hold. */
static void many_heads(void **state) {
    (void)state;
    run(&(sample){"fwd fp16 d16", NULL, 300, 256, 256, 17, 17, FK_BHSD, 0});
}

/* Rows 2^20 elements apart: the last element of each tensor lies beyond 2^31. */
static void huge_tensors(void **state) {
    (void)state;
    run(&(sample){"fwd fp16 d64 causal", NULL, 1, 1, 1, 2100, 2100, FK_BSHD, 1 << 20});
}

static void host_cost(void **state) {
    (void)state;
    enum { ROUNDS = 20, LAUNCHES = 200 }; /* fewer than the driver queues before it waits */
    const sample s = {"fwd fp16 d64 causal", NULL, 1, 1, 1, 64, 64, FK_BSHD, 0};
    fk_context *context = open_context(NULL);
    fk_kernel *kernel, *again;
    sample_tensors t;
    double dispatch = 0, execute = 0;
    void *workspace = NULL;
    assert_true(sample_make(context, &s, &t));
    assert_int_equal(fk_kernel_create(context, &t.p, &kernel), FK_OK);
    const size_t bytes = fk_kernel_workspace(kernel, &t.args);
    if (bytes) assert_int_equal(fk_device_malloc(context, bytes, &workspace), FK_OK);
    for (int round = 0; round < ROUNDS; round++) {
        double begin = fk_now_ms();
        for (int i = 0; i < LAUNCHES; i++)
            assert_int_equal(fk_execute(kernel, &t.args, workspace, bytes, NULL), FK_OK);
        if (round > 0) execute += fk_now_ms() - begin; /* the first warms up */
        assert_int_equal(fk_synchronize(context, NULL), FK_OK);
        begin = fk_now_ms();
        for (int i = 0; i < LAUNCHES; i++) {
            assert_int_equal(fk_kernel_create(context, &t.p, &again), FK_OK);
            fk_kernel_destroy(again);
        }
        if (round > 0) dispatch += fk_now_ms() - begin;
    }
    const double calls = (ROUNDS - 1) * LAUNCHES, dispatch_ns = 1e6 * dispatch / calls,
                 execute_ns = 1e6 * execute / calls;
    print_message("host cost: dispatch of a known problem %.0f ns, fk_execute %.0f ns\n", dispatch_ns, execute_ns);
    assert_true(dispatch_ns < 20000 && execute_ns < 50000);
    fk_device_free(context, workspace);
    fk_kernel_destroy(kernel);
    sample_free(context, &t);
    fk_context_destroy(context);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(known_shapes), cmocka_unit_test(plans_for_other_gpus),
        cmocka_unit_test(many_heads),   cmocka_unit_test(huge_tensors),
        cmocka_unit_test(host_cost),
    };
    fk_device_info device;
    if (fk_device_find("cuda:0", &device)) {
        printf("skipped: gpu/forward_test needs a GPU: %s\n", fk_last_error());
        return 77;
    }
    printf("on %s, sm_%d\n", device.name, device.sm);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
