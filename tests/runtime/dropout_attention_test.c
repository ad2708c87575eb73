/* Dropout in the attention kernels, on the emulator: the keep mask is that of its definition for every plan, layout,
 * pass and number of splits, both as fk_keep_mask tells it and as the results show it; p = 0 is no dropout; dropped
 * weights of any size; and what is refused. Errors against float64: tests/random_problems.c. */
#include "dropout_sample.h"

enum { BATCH = 2, HEADS = 3 };

static void one_mask_for_all(void **state) {
    (void)state;
    static const struct {
        const char *spelling, *plan_for;
        fk_layout layout;
    } cases[] = {{"bwd fp16 d80 dropout", "a100", FK_BSHD},
                 {"bwd bf16 d80 dropout deterministic", "h200", FK_BHSD},
                 {"bwd fp16 d16 dv80 dropout", "t4", FK_BSHD},
                 {"bwd fp16 d256 dv80 dropout", "rtx3090", FK_BHSD},
                 {"bwd bf16 d320 dropout", "h200", FK_BSHD}}; /* two CTAs have half of the queries each */
    const size_t count = BATCH * HEADS * 61 * 75;
    uint8_t *first = NULL;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const sample s = {cases[i].spelling, cases[i].plan_for, BATCH, HEADS, HEADS, 61, 75, cases[i].layout, 0};
        uint8_t *mask = dropout_check_mask("emu", &s, 0.3);
        if (first) assert_memory_equal(mask, first, count);
        free(first);
        first = mask;
    }
    free(first);
    const sample s = {"bwd bf16 d80 dropout", "a100", BATCH, HEADS, HEADS, 61, 75, FK_BSHD, 0};
    free(dropout_check_mask("emu", &s, 0.9)); /* to keep is the rarer outcome */
}

/* Both passes over normal inputs; results stay in t->data. */
static void run_both(fk_context *context, backward_tensors *t) {
    fk_problem forward = t->p;
    forward.op = FK_FORWARD, forward.deterministic = 0;
    fk_kernel *kernel = dropout_kernel(context, &forward), *backward = dropout_kernel(context, &t->p);
    dropout_execute(context, kernel, t);
    dropout_execute(context, backward, t);
    for (int i = BWD_O; i < BWD_TENSORS; i++)
        backward_fetch(context, t, i);
    fk_kernel_destroy(kernel);
    fk_kernel_destroy(backward);
}

static void assert_same_results(const backward_tensors *a, const backward_tensors *b) {
    for (int i = BWD_O; i < BWD_TENSORS; i++)
        assert_memory_equal(a->data[i], b->data[i], a->rows[i] * a->dim[i] * 2);
    assert_memory_equal(a->lse, b->lse, a->rows[BWD_Q] * sizeof(float));
}

/* 16 queries and 16 keys are one step of every sum, so that plans, which know what dropout costs, may differ. */
static void nothing_dropped_is_no_dropout(void **state) {
    (void)state;
    static const char *const plans[] = {"a100", "t4"};
    sample s = {.batch = BATCH, .num_heads_q = HEADS, .num_heads_kv = HEADS, .seqlen_q = 16, .seqlen_k = 16};
    for (size_t i = 0; i < 2; i++) {
        fk_context *context = dropout_context("emu", plans[i]);
        backward_tensors with, without;
        s.spelling = "bwd fp16 d64 causal dropout deterministic";
        assert_true(backward_make(context, &s, &with));
        s.spelling = "bwd fp16 d64 causal deterministic";
        assert_true(backward_make(context, &s, &without));
        dropout_set(&with, 0);
        run_both(context, &with);
        run_both(context, &without);
        assert_same_results(&with, &without);
        backward_free(context, &with);
        backward_free(context, &without);
        fk_context_destroy(context);
    }
}

/* What a replay of a captured graph does: the same arguments, other numbers in memory. */
static void seed_and_offset_in_memory(void **state) {
    (void)state;
    const sample s = {"bwd fp16 d64 dropout deterministic", NULL, BATCH, HEADS, HEADS, 70, 90, FK_BHSD, 0};
    fk_context *context = dropout_context("emu", "a100");
    backward_tensors by_value, in_memory;
    assert_true(backward_make(context, &s, &by_value));
    assert_true(backward_make(context, &s, &in_memory));
    dropout_set(&by_value, 0.5);
    in_memory.args.dropout_p = 0.5;
    uint64_t memory[2] = {by_value.args.dropout_seed, by_value.args.dropout_offset};
    in_memory.args.dropout_state = memory;
    run_both(context, &by_value);
    run_both(context, &in_memory);
    assert_same_results(&by_value, &in_memory);
    memory[1] = ++by_value.args.dropout_offset;
    run_both(context, &in_memory);
    assert_memory_not_equal(by_value.data[BWD_O], in_memory.data[BWD_O], by_value.rows[BWD_O] * 64 * 2);
    run_both(context, &by_value);
    assert_same_results(&by_value, &in_memory);
    backward_free(context, &by_value);
    backward_free(context, &in_memory);
    fk_context_destroy(context);
}

static void infinite_weights(void **state) {
    (void)state;
    dropout_check_infinite("emu", "h200", 64);
    dropout_check_infinite("emu", "h200", 256);
    dropout_check_infinite("emu", "a100", 64);
}

static void assert_refused(fk_status status, const char *field, const char *limit) {
    assert_int_equal(status, FK_BAD_ARGUMENT);
    if (!strstr(fk_last_error(), field) || !strstr(fk_last_error(), limit)) fail_msg("%s", fk_last_error());
}

static void refusals(void **state) {
    (void)state;
    static uint8_t mask[1];
    const sample s = {"bwd fp16 d64 dropout", NULL, 1, 1, 1, 40, 50, FK_BSHD, 0};
    fk_context *context = dropout_context("emu", "a100");
    backward_tensors t;
    assert_true(backward_make(context, &s, &t));
    fk_problem forward = t.p, plain = t.p;
    forward.op = plain.op = FK_FORWARD, plain.dropout = 0;
    fk_kernel *kernel = dropout_kernel(context, &forward), *without = dropout_kernel(context, &plain);
    fk_args a = t.args;
    a.dropout_p = 1;
    assert_refused(fk_execute(kernel, &a, NULL, 0, NULL), "dropout p is 1", "[0, 1)");
    assert_refused(fk_keep_mask(kernel, &a, mask, NULL), "dropout p is 1", "[0, 1)");
    a.dropout_p = -0.5;
    assert_refused(fk_reference(&forward, &a, FK_REFERENCE_F64, NULL, NULL), "dropout p is -0.5", "[0, 1)");
    a.dropout_p = 0.1;
    assert_refused(fk_execute(without, &a, NULL, 0, NULL), "dropout_p is 0.1", "must be 0 unless");
    assert_refused(fk_keep_mask(without, &a, mask, NULL), "no keep mask", "must say dropout");
    assert_refused(fk_reference_keep_mask(&plain, &a, mask), "no keep mask", "must say dropout");
    a.dropout_state = (const uint64_t *)(uintptr_t)((uintptr_t)t.device[BWD_Q] + 4);
    assert_refused(fk_execute(kernel, &a, NULL, 0, NULL), "dropout_state is at", "aligned to 8");
    a.dropout_state = t.device[BWD_O];
    assert_refused(fk_execute(kernel, &a, NULL, 0, NULL), "overlaps dropout_state", "must not");
    a.dropout_state = NULL, a.seqlen_k = 0;
    assert_refused(fk_keep_mask(kernel, &a, mask, NULL), "seqlen_k is 0", "must be 1 to");
    a.seqlen_q = a.seqlen_k = FK_MAX_SEQLEN, a.batch = 1 << 20;
    assert_refused(fk_keep_mask(kernel, &a, mask, NULL), "the mask has 1048576 x", "2^60");
    a.struct_size = 8;
    assert_refused(fk_keep_mask(kernel, &a, mask, NULL), "struct_size is 8", "FK_ARGS_INIT");
    assert_refused(fk_keep_mask(kernel, &t.args, NULL, NULL), "out", "null");
    fk_kernel_destroy(kernel);
    fk_kernel_destroy(without);
    backward_free(context, &t);
    fk_context_destroy(context);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(one_mask_for_all),
        cmocka_unit_test(nothing_dropped_is_no_dropout),
        cmocka_unit_test(seed_and_offset_in_memory),
        cmocka_unit_test(infinite_weights),
        cmocka_unit_test(refusals),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
