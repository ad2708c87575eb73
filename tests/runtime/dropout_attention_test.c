/* Dropout in the attention kernels, on the emulator: the keep mask is that of its definition for every plan, layout,
 * pass and number of splits, both as fk_keep_mask tells it and as the results show it; p = 0 is no dropout; and what is
 * refused. Errors against float64: tests/random_problems.c. */
#include "backward_sample.h"

static fk_context *open_context(const char *plan_for) {
    fk_context_options options = FK_CONTEXT_OPTIONS_INIT;
    fk_context *context;
    options.device = "emu", options.plan_for = plan_for, options.cache_mode = FK_CACHE_OFF;
    if (fk_context_create(&options, &context)) fail_msg("%s", fk_last_error());
    return context;
}

static fk_kernel *create(fk_context *context, const fk_problem *p) {
    fk_kernel *kernel;
    if (fk_kernel_create(context, p, &kernel)) fail_msg("%s", fk_last_error());
    return kernel;
}

/* Two batch entries, three heads; as many queries and keys as there are columns, or fewer. */
enum { BATCH = 2, HEADS = 3, QUERIES = 61, KEYS = 75, DIM = 80 };

static void set_dropout(backward_tensors *t, double p) {
    t->args.dropout_p = t->host.dropout_p = p;
    t->args.dropout_seed = t->host.dropout_seed = 0x123456789abcdef0;
    t->args.dropout_offset = t->host.dropout_offset = 7;
}

static void upload(fk_context *context, backward_tensors *t, int i) {
    sample_copy(context, t->device[i], (char *)t->data[i], t->rows[i], t->dim[i] * 2, t->stride[i] * 2, true);
}

static uint16_t *row_of(const backward_tensors *t, int i, const int64_t stride[3], int64_t b, int64_t s, int64_t h) {
    return t->data[i] + b * stride[0] + s * stride[1] + h * stride[2];
}

/* q = k = 0, so that all weights of a row are equal; v and dout are unit vectors, so that o and dv are the weights that
 * are left, with their columns the keys and the queries. */
static void fill_unit(fk_context *context, backward_tensors *t) {
    for (int i = BWD_Q; i <= BWD_DOUT; i++)
        memset(t->data[i], 0, t->rows[i] * t->dim[i] * 2);
    const uint16_t one = t->p.dtype == FK_BF16 ? fk_bf16_from_float(1) : fk_fp16_from_float(1);
    for (int64_t b = 0; b < BATCH; b++)
        for (int64_t h = 0; h < HEADS; h++) {
            for (int64_t k = 0; k < KEYS; k++)
                row_of(t, BWD_V, t->host.v_stride, b, k, h)[k] = one;
            for (int64_t q = 0; q < QUERIES; q++)
                row_of(t, BWD_DOUT, t->host.dout_stride, b, q, h)[q] = one;
        }
    for (int i = BWD_Q; i <= BWD_DOUT; i++)
        upload(context, t, i);
}

/* Element (q, k) of o and of dv is not 0 exactly where the mask keeps it. */
static void assert_shown(const backward_tensors *t, const uint8_t *mask, bool backward) {
    for (int64_t b = 0; b < BATCH; b++)
        for (int64_t h = 0; h < HEADS; h++)
            for (int64_t q = 0; q < QUERIES; q++)
                for (int64_t k = 0; k < KEYS; k++) {
                    const int keep = mask[((b * HEADS + h) * QUERIES + q) * KEYS + k];
                    assert_int_equal(row_of(t, BWD_O, t->host.o_stride, b, q, h)[k] != 0, keep);
                    if (backward) assert_int_equal(row_of(t, BWD_DV, t->host.dv_stride, b, k, h)[q] != 0, keep);
                }
}

static void assert_told(const fk_kernel *kernel, const backward_tensors *t, const uint8_t *mask) {
    enum { COUNT = BATCH * HEADS * QUERIES * KEYS };
    static uint8_t told[COUNT];
    memset(told, 7, sizeof told);
    if (fk_keep_mask(kernel, &t->args, told, NULL)) fail_msg("%s", fk_last_error());
    assert_memory_equal(told, mask, sizeof told);
}

static void execute(const fk_kernel *kernel, backward_tensors *t) {
    free(t->workspace);
    t->workspace_bytes = fk_kernel_workspace(kernel, &t->args);
    t->workspace = aligned_alloc(256, t->workspace_bytes + 256);
    if (fk_execute(kernel, &t->args, t->workspace, t->workspace_bytes, NULL)) fail_msg("%s", fk_last_error());
}

/* The mask of both passes of a problem, whose spelling is that of the backward pass. */
static void check_mask(const char *spelling, const char *plan_for, fk_layout layout, double p, uint8_t *first_mask) {
    static uint8_t mask[BATCH * HEADS * QUERIES * KEYS];
    const sample s = {spelling, plan_for, BATCH, HEADS, HEADS, QUERIES, KEYS, layout, 0};
    fk_context *context = open_context(plan_for);
    backward_tensors t;
    assert_true(backward_make(context, &s, &t));
    set_dropout(&t, p);
    t.args.dlse = NULL;
    fill_unit(context, &t);
    assert_int_equal(fk_reference_keep_mask(&t.p, &t.host, mask), FK_OK);
    fk_kernel *backward = create(context, &t.p);
    for (int split = 0; split < 2; split++) {
        fk_problem forward = t.p;
        forward.op = FK_FORWARD, forward.deterministic = 0, forward.split = split;
        t.args.num_splits = 2 * split;
        fk_kernel *kernel = create(context, &forward);
        execute(kernel, &t);
        backward_fetch(context, &t, BWD_O);
        assert_shown(&t, mask, false);
        assert_told(kernel, &t, mask);
        fk_kernel_destroy(kernel);
    }
    execute(backward, &t);
    backward_fetch(context, &t, BWD_DV);
    assert_shown(&t, mask, true);
    assert_told(backward, &t, mask);
    if (first_mask[0] == 7) memcpy(first_mask, mask, sizeof mask);
    assert_memory_equal(first_mask, mask, sizeof mask); /* the same for all callers */
    fk_kernel_destroy(backward);
    free(t.workspace);
    t.workspace = NULL;
    backward_free(context, &t);
    fk_context_destroy(context);
}

static void one_mask_for_all(void **state) {
    (void)state;
    uint8_t *mask = malloc(BATCH * HEADS * QUERIES * KEYS);
    assert_non_null(mask);
    mask[0] = 7;
    check_mask("bwd fp16 d80 dropout", "a100", FK_BSHD, 0.3, mask);
    check_mask("bwd bf16 d80 dropout deterministic", "h200", FK_BHSD, 0.3, mask);
    check_mask("bwd fp16 d16 dv80 dropout", "t4", FK_BSHD, 0.3, mask);
    check_mask("bwd fp16 d256 dv80 dropout", "rtx3090", FK_BHSD, 0.3, mask);
    mask[0] = 7;
    check_mask("bwd bf16 d80 dropout", "a100", FK_BSHD, 0.9, mask); /* to keep is the rarer outcome */
    free(mask);
}

/* Both passes over normal inputs; results stay in t->data. */
static void run_both(fk_context *context, backward_tensors *t) {
    fk_problem forward = t->p;
    forward.op = FK_FORWARD, forward.deterministic = 0;
    fk_kernel *kernel = create(context, &forward), *backward = create(context, &t->p);
    execute(kernel, t);
    execute(backward, t);
    for (int i = BWD_O; i < BWD_TENSORS; i++)
        backward_fetch(context, t, i);
    fk_kernel_destroy(kernel);
    fk_kernel_destroy(backward);
    free(t->workspace);
    t->workspace = NULL;
}

static void assert_same_results(const backward_tensors *a, const backward_tensors *b) {
    for (int i = BWD_O; i < BWD_TENSORS; i++)
        assert_memory_equal(a->data[i], b->data[i], a->rows[i] * a->dim[i] * 2);
    assert_memory_equal(a->lse, b->lse, a->rows[BWD_Q] * sizeof(float));
}

static void nothing_dropped_is_no_dropout(void **state) {
    (void)state;
    sample s = {"bwd bf16 d64 causal dropout deterministic", NULL, BATCH, HEADS, HEADS, 150, 190, FK_BSHD, 0};
    fk_context *context = open_context("a100");
    backward_tensors with, without;
    assert_true(backward_make(context, &s, &with));
    s.spelling = "bwd bf16 d64 causal deterministic";
    assert_true(backward_make(context, &s, &without));
    set_dropout(&with, 0);
    run_both(context, &with);
    run_both(context, &without);
    assert_same_results(&with, &without);
    backward_free(context, &with);
    backward_free(context, &without);
    fk_context_destroy(context);
}

/* What a replay of a captured graph does: the same arguments, other numbers in memory. */
static void seed_and_offset_in_memory(void **state) {
    (void)state;
    const sample s = {"bwd fp16 d64 dropout deterministic", NULL, BATCH, HEADS, HEADS, 70, 90, FK_BHSD, 0};
    fk_context *context = open_context("a100");
    backward_tensors by_value, in_memory;
    assert_true(backward_make(context, &s, &by_value));
    assert_true(backward_make(context, &s, &in_memory));
    set_dropout(&by_value, 0.5);
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

static void assert_refused(fk_status status, const char *field, const char *limit) {
    assert_int_equal(status, FK_BAD_ARGUMENT);
    if (!strstr(fk_last_error(), field) || !strstr(fk_last_error(), limit)) fail_msg("%s", fk_last_error());
}

static void refusals(void **state) {
    (void)state;
    static uint8_t mask[1];
    const sample s = {"bwd fp16 d64 dropout", NULL, 1, 1, 1, 40, 50, FK_BSHD, 0};
    fk_context *context = open_context("a100");
    backward_tensors t;
    assert_true(backward_make(context, &s, &t));
    fk_problem forward = t.p, plain = t.p;
    forward.op = plain.op = FK_FORWARD, plain.dropout = 0;
    fk_kernel *kernel = create(context, &forward), *without = create(context, &plain);
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
        cmocka_unit_test(refusals),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
