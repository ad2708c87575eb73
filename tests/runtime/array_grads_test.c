/* Gradients of declared arrays on the emulator, the whole way: each way of summing them, and what a launch refuses. */
#include "array_grads_sample.h"

#define USER "array=slope:float[h] score=\"s + 0.1 * tanh(s) - abs(q - k) * slope[h]\" grad=slope"

static uint64_t run(const grad_sample *s) {
    fk_context_options options = FK_CONTEXT_OPTIONS_INIT;
    fk_context *context;
    options.device = "emu", options.plan_for = s->plan_for, options.cache_mode = FK_CACHE_OFF;
    if (fk_context_create(&options, &context)) fail_msg("%s", fk_last_error());
    const uint64_t hash = grad_run(context, s, 1);
    fk_context_destroy(context);
    return hash;
}

static void samples(void **state) {
    (void)state;
    static const grad_sample all[] = {
        {"bwd bf16 d64 " USER, "a100", 2, 2, 2, 100, 130, false}, /* one element for all pairs */
        {"bwd fp16 d64 gqa " USER, "t4", 1, 4, 2, 70, 90, false},
        {"bwd fp16 d32 bias grad=bias", "a100", 2, 2, 2, 70, 140, false}, /* stored */
        {"bwd fp16 d32 bias grad=bias causal", "a100", 2, 2, 2, 140, 70, true},
        {"bwd fp16 d32 bias grad=bias", "a100", 1, 2, 2, 70, 90, true}, /* of a batch of one there is no sum */
        {"bwd bf16 d64 bias grad=bias", "h200", 1, 2, 2, 150, 132, true},
        {"bwd fp16 d32 array=u:float[q] array=v:float[k] score=\"s + u[q] * v[k]\" grad=u grad=v", "rtx3090", 1, 2, 2,
         90, 150, false},
        {"bwd bf16 d64 relative(30) grad=table", "a100", 1, 2, 2, 100, 100, false}, /* runs */
        /* queries beyond an axis of keys share its last element */
        {"bwd bf16 d64 array=t:float[b][h][k][k] score=\"s + t[b][h][q][k]\" grad=t", "h200", 2, 2, 2, 150, 100, false},
        {"bwd bf16 d64 gqa sink softcap(4) grad=sink causal", "a100", 2, 4, 2, 100, 60, false},
        {"bwd bf16 d128 bias grad=bias", "h200", 2, 2, 2, 100, 132, false},           /* tiles are stored */
        {"bwd bf16 d128 gqa bias grad=bias causal", "h200", 2, 4, 2, 140, 132, true}, /* and added */
        {"bwd bf16 d128 bias grad=bias", "h200", 2, 2, 2, 70, 131, true}, /* no tensor map has rows of 131 floats */
        {"bwd bf16 d128 bias grad=bias", "h200", 2, 2, 2, 70, 130, GRAD_PADDED}, /* nor writes 130 of 132 */
        {"bwd fp16 d32 bias grad=bias", "h200", 6, 4, 4, 240, 241, true}, /* of the array's 241 there is a copy */
        {"bwd bf16 d128 bias grad=bias causal", "h200", 1, 2, 2, 70, 131, GRAD_SUMMED | GRAD_PADDED},
        {"bwd bf16 d128 array=bias:bf16[b][h][q][k] grad=bias bias", "h200", 2, 2, 2, 100, 136, false},
        {"bwd bf16 d128 array=bias:bf16[b][h][q][k] grad=bias bias", "h200", 2, 2, 2, 70, 132,
         true}, /* of its floats */
    };
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        run(&all[i]);
}

static void deterministic(void **state) {
    (void)state;
    static const grad_sample all[] = {
        {"bwd bf16 d64 deterministic " USER, "a100", 2, 2, 2, 200, 130, false},
        {"bwd fp16 d32 deterministic bias grad=bias", "a100", 2, 2, 2, 70, 140, true},
        {"bwd fp16 d32 deterministic relative(20) sink grad=table grad=sink", "t4", 1, 2, 2, 150, 100, true},
    };
    static const char *const schedules[][2] = {{"0", "1"}, {"7", "4"}, {"12345", "3"}}; /* seed, OS threads */
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        uint64_t first = 0;
        for (size_t n = 0; n < sizeof schedules / sizeof *schedules; n++) {
            setenv("FLASHKILN_EMU_SEED", schedules[n][0], 1);
            setenv("FLASHKILN_EMU_THREADS", schedules[n][1], 1);
            const uint64_t hash = run(&all[i]);
            if (n == 0) first = hash;
            assert_int_equal(hash, first);
        }
    }
    unsetenv("FLASHKILN_EMU_SEED");
    unsetenv("FLASHKILN_EMU_THREADS");
}

static void refused(void **state) {
    (void)state;
    const grad_sample s = {"bwd fp16 d32 bias grad=bias deterministic", "a100", 1, 2, 2, 20, 30, false};
    fk_context_options options = FK_CONTEXT_OPTIONS_INIT;
    fk_context *context;
    fk_kernel *kernel;
    grad_tensors t;
    options.device = "emu", options.plan_for = s.plan_for, options.cache_mode = FK_CACHE_OFF;
    assert_int_equal(fk_context_create(&options, &context), FK_OK);
    grad_make(context, &s, &t);
    assert_int_equal(fk_kernel_create(context, &t.p, &kernel), FK_OK);

    /* A sum over queries needs room for exact sums: 80 bytes for each of 2 x 30 elements. */
    fk_args a = t.args;
    const size_t stored = fk_kernel_workspace(kernel, &a);
    a.array_grad[0].stride[2] = 0;
    a.array_grad[0].stride[0] = a.array_grad[0].stride[1] = 30;
    assert_int_equal(fk_kernel_workspace(kernel, &a), stored + (60 * 80 + 255) / 256 * 256);

    a.array_grad[0].stride[1] = (int64_t)1 << 60; /* spans more than fk_execute takes */
    assert_int_equal(fk_kernel_workspace(kernel, &a), 0);
    a.array_grad[0].stride[1] = (int64_t)1 << 59; /* more bytes than there are */
    assert_int_equal(fk_kernel_workspace(kernel, &a), 0);

    void *workspace = grad_upload(context, NULL, stored);
    const struct {
        fk_array_grad grad;
        const char *words;
    } bad[] = {
        {{NULL, {0}}, "array_grad[0] (bias) is null"},
        {{(float *)(void *)((char *)t.args.array_grad[0].data + 2), {0}}, "aligned to 4 bytes"},
        {{t.args.array_grad[0].data, {0, 0, -1, 0}}, "array_grad[0].stride[2] (bias) is -1"},
        {{t.args.array_grad[0].data, {0, 0, 0, INT64_MAX / 4}}, "array_grad[0].stride[3] (bias)"},
        {{t.arrays[0], {1200, 600, 30, 1}}, "array_grad[0] at 0x"},
    };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        a = t.args;
        a.array_grad[0] = bad[i].grad;
        assert_int_equal(fk_execute(kernel, &a, workspace, stored, NULL), FK_BAD_ARGUMENT);
        if (!strstr(fk_last_error(), bad[i].words)) fail_msg("\"%s\" is not in \"%s\"", bad[i].words, fk_last_error());
    }
    fk_device_free(context, workspace);
    fk_kernel_destroy(kernel);
    grad_free(context, &t);
    fk_context_destroy(context);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(samples), cmocka_unit_test(deterministic),
                                       cmocka_unit_test(refused)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
