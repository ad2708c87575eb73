/* fk_args.condition: a launch whose condition does not hold writes nothing, any other what it writes without one. */
#include "backward_sample.h"
#include "blocks_sample.h"
#include "emulated.h"
#include "store.h"

#define WORDS "keep=\"((q * 40503 + (k >> 5) * 30011 + h * 77) >> (k & 31) & 1) == 1\""

/* A launch whose condition is that 7 is `value`. */
static void launch_if(fk_context *context, const char *spelling, const fk_kernel *kernel, fk_args args, int32_t value) {
    void *number = blocks_upload(context, &(int32_t){7}, sizeof(int32_t));
    args.condition = number, args.condition_value = value;
    if (launch_once(context, kernel, &args)) fail_msg("%s: %s", spelling, fk_last_error());
    fk_device_free(context, number);
}

/* The launch with a condition that does not hold, over results that are all ones. */
static void assert_left_alone(fk_context *context, const char *spelling, const fk_kernel *kernel, const fk_args *args,
                              const void *const *result, const size_t *bytes, int count) {
    char *before[3], *after[3];
    for (int i = 0; i < count; i++) {
        before[i] = malloc(bytes[i]), after[i] = malloc(bytes[i]);
        assert_true(before[i] && after[i]);
        memset(before[i], 0xff, bytes[i]);
        assert_int_equal(fk_copy_to_device(context, (void *)(uintptr_t)result[i], before[i], bytes[i]), FK_OK);
    }
    launch_if(context, spelling, kernel, *args, 8);
    for (int i = 0; i < count; i++) {
        assert_int_equal(fk_copy_from_device(context, after[i], result[i], bytes[i]), FK_OK);
        if (memcmp(before[i], after[i], bytes[i]) != 0) fail_msg("%s: result %d was written to", spelling, i);
        free(before[i]), free(after[i]);
    }
}

static void run_forward(const sample *s) {
    fk_context *context = emulated_context(s->plan_for, store_dir, &(emulated){"2", "0", "0"});
    fk_kernel *kernel = emulated_kernel(context, s->spelling, NULL);
    sample_tensors t;
    assert_true(sample_make(context, s, &t));
    t.args.num_splits = t.p.split ? 3 : 0;
    assert_left_alone(context, s->spelling, kernel, &t.args, (const void *[]){t.args.o, t.args.lse},
                      (size_t[]){t.elements[3] * 2, t.rows_q * sizeof(float)}, 2);
    launch_if(context, s->spelling, kernel, t.args, 7);
    sample_fetch(context, s, &t);
    sample_check(s, &t);
    sample_free(context, &t);
    fk_kernel_destroy(kernel);
    fk_context_destroy(context);
}

static void forward(void **state) {
    (void)state;
    static const sample cases[] = {
        {"fwd bf16 d64 causal", "h200", 1, 2, 2, 200, 300, FK_BSHD, 0},
        {"fwd fp16 d128 " WORDS, "h200", 1, 2, 2, 150, 260, FK_BSHD, 0},
        {"fwd fp16 d64 causal", "a100", 1, 2, 2, 100, 130, FK_BSHD, 0},
        {"fwd fp16 d32 split score=\"s + 0.01 * q\"", "a100", 1, 1, 1, 20, 200, FK_BSHD, 0},
        {"fwd bf16 d64 " WORDS, "a100", 1, 2, 2, 100, 130, FK_BSHD, 0},
        {"fwd bf16 d136", "h200", 1, 1, 1, 200, 130, FK_BSHD, 0},
    };
    for (size_t i = 0; i < emulated_cases(sizeof cases / sizeof *cases); i++)
        run_forward(&cases[i]);
}

static void run_backward(const sample *s, const fk_shape *shape) {
    fk_context *context = emulated_context(s->plan_for, store_dir, &(emulated){"2", "0", "0"});
    fk_kernel *kernel = emulated_kernel(context, s->spelling, shape);
    backward_tensors t;
    assert_true(backward_make(context, s, &t));
    backward_forward(context, s, &t);
    assert_left_alone(context, s->spelling, kernel, &t.args, (const void *[]){t.args.dq, t.args.dk, t.args.dv},
                      (size_t[]){t.rows[BWD_DQ] * t.dim[BWD_DQ] * 2, t.rows[BWD_DK] * t.dim[BWD_DK] * 2,
                                 t.rows[BWD_DV] * t.dim[BWD_DV] * 2},
                      3);
    launch_if(context, s->spelling, kernel, t.args, 7);
    for (int i = BWD_DQ; i <= BWD_DV; i++)
        backward_fetch(context, &t, i);
    backward_check(s, &t);
    backward_free(context, &t);
    fk_kernel_destroy(kernel);
    fk_context_destroy(context);
}

static void backward(void **state) {
    (void)state;
    static const sample cases[] = {
        {"bwd bf16 d64 causal", "h200", 1, 2, 2, 200, 300, FK_BSHD, 0},
        {"bwd fp16 d128 " WORDS, "h200", 1, 2, 2, 150, 260, FK_BSHD, 0},
        {"bwd fp16 d64 causal", "a100", 1, 2, 2, 100, 130, FK_BSHD, 0},
        {"bwd bf16 d64 deterministic " WORDS, "a100", 1, 2, 2, 100, 130, FK_BSHD, 0},
        {"bwd bf16 d192 deterministic", "h200", 1, 1, 1, 200, 130, FK_BSHD, 0},
    };
    for (size_t i = 0; i < emulated_cases(sizeof cases / sizeof *cases); i++)
        run_backward(&cases[i], NULL);
    run_backward(&cases[0], &(fk_shape){1, 2, 2, 100, 100}); /* dQ in shared memory */
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(forward), cmocka_unit_test(backward)};
    return cmocka_run_group_tests(tests, make_store, remove_store);
}
