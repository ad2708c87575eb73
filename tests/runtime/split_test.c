/* Split keys and paged keys through the public interface, on the emulator: what is refused, what the workspace is, and
 * that neither the number of splits nor the place of a page shows in the result. */
#include "sample.h"
#include "scratch.h"

static char store_dir[256];
static fk_context *context;

enum { BATCH = 2, HEADS_Q = 4, HEADS_KV = 2, ROWS = 3, KEYS = 200, DIM = 32, TABLE = KEYS + 4 };

/* One problem, contiguous; `paged` moves its keys. */
typedef struct inputs {
    fk_problem p;
    fk_kernel *kernel;
    fk_args args;
    _Alignas(16) uint16_t q[BATCH * ROWS * HEADS_Q * DIM], k[BATCH * KEYS * HEADS_KV * DIM],
        v[BATCH * KEYS * HEADS_KV * DIM], o[BATCH * ROWS * HEADS_Q * DIM];
    float lse[BATCH * HEADS_Q * ROWS];
    uint16_t *pages[2];
    int32_t table[BATCH * TABLE];
    void *workspace;
} inputs;

static void open_problem(const char *spelling, inputs *in) {
    memset(in, 0, sizeof *in);
    if (fk_problem_parse(spelling, &in->p) || fk_kernel_create(context, &in->p, &in->kernel))
        fail_msg("%s: %s", spelling, fk_last_error());
    in->args = (fk_args)FK_ARGS_INIT;
    fk_args *a = &in->args;
    a->batch = BATCH, a->num_heads_q = HEADS_Q, a->num_heads_kv = HEADS_KV, a->seqlen_q = ROWS, a->seqlen_k = KEYS;
    a->page_size = a->num_pages = 1; /* until there are pages */
    fk_problem rows = in->p;
    rows.paged = 0;
    assert_int_equal(fk_args_layout(&rows, FK_BSHD, a), FK_OK);
    sample_fill(in->q, sizeof in->q / 2, false, 1);
    sample_fill(in->k, sizeof in->k / 2, false, 2);
    sample_fill(in->v, sizeof in->v / 2, false, 3);
    a->q = in->q, a->k = in->k, a->v = in->v, a->o = in->o, a->lse = in->lse;
}

static void close_problem(inputs *in) {
    fk_kernel_destroy(in->kernel);
    fk_device_free(context, in->workspace);
    free(in->pages[0]);
    free(in->pages[1]);
}

/* Cuts the keys into pages, the last page of the last sequence first; what is not used is NaN, or no page at all. */
static void cut(inputs *in, int page_size) {
    fk_args *a = &in->args;
    const int width = (KEYS + page_size - 1) / page_size, count = BATCH * width + 1;
    const size_t page = (size_t)(page_size * HEADS_KV * DIM);
    a->page_size = page_size, a->num_pages = count, a->page_table_stride = TABLE, a->page_table = in->table;
    for (int i = 0; i < BATCH * TABLE; i++)
        in->table[i] = i % 2 ? -7 : INT32_MAX;
    for (int t = 0; t < 2; t++) {
        free(in->pages[t]);
        in->pages[t] = malloc(page * (size_t)count * 2);
        assert_non_null(in->pages[t]);
        memset(in->pages[t], 0xff, page * (size_t)count * 2);
        for (int row = 0; row < BATCH * KEYS; row++) {
            const int b = row / KEYS, n = row % KEYS, at = count - 1 - (b * width + n / page_size);
            in->table[b * TABLE + n / page_size] = at;
            memcpy(in->pages[t] + (size_t)at * page + (size_t)(n % page_size * HEADS_KV * DIM),
                   (t ? in->v : in->k) + row * HEADS_KV * DIM, HEADS_KV * DIM * 2);
        }
    }
    a->k = in->pages[0], a->v = in->pages[1];
    assert_int_equal(fk_args_layout(&in->p, FK_BSHD, a), FK_OK);
}

static void execute(inputs *in) {
    const size_t bytes = fk_kernel_workspace(in->kernel, &in->args);
    memset(in->o, 0xff, sizeof in->o);
    memset(in->lse, 0xff, sizeof in->lse);
    fk_device_free(context, in->workspace);
    in->workspace = NULL;
    if (bytes) assert_int_equal(fk_device_malloc(context, bytes, &in->workspace), FK_OK);
    if (fk_execute(in->kernel, &in->args, in->workspace, bytes, NULL)) fail_msg("%s", fk_last_error());
}

static void assert_near(const inputs *a, const inputs *b) {
    for (size_t i = 0; i < sizeof a->o / 2; i++) {
        const float x = fk_fp16_to_float(a->o[i]), y = fk_fp16_to_float(b->o[i]);
        if (!(fabsf(x - y) <= 2e-3f)) fail_msg("o[%zu] is %g, not %g", i, (double)x, (double)y);
    }
    for (size_t i = 0; i < sizeof a->lse / sizeof(float); i++)
        if (!(fabsf(a->lse[i] - b->lse[i]) <= 1e-5f)) fail_msg("lse[%zu] is %g", i, (double)a->lse[i]);
}

static void assert_refused(const inputs *in, const fk_args *a, size_t workspace_bytes, const char *words) {
    assert_int_equal(fk_execute(in->kernel, a, in->workspace, workspace_bytes, NULL), FK_BAD_ARGUMENT);
    if (!strstr(fk_last_error(), words)) fail_msg("'%s' lacks '%s'", fk_last_error(), words);
}

/* ---- splits ------------------------------------------------------------------------------------------- */

static void splits(void **state) {
    (void)state;
    static inputs one, many, again;
    open_problem("fwd fp16 d32 gqa causal split", &one); /* rows of two heads to a tile */
    one.args.num_splits = 1;
    execute(&one);
    many = again = one;
    many.args.o = many.o, many.args.lse = many.lse, again.args.o = again.o, again.args.lse = again.lse;
    many.workspace = again.workspace = NULL;
    static const int counts[] = {0, 2, 3, 7, FK_MAX_SPLITS};
    for (size_t i = 0; i < sizeof counts / sizeof *counts; i++) {
        many.args.num_splits = again.args.num_splits = counts[i];
        execute(&many);
        execute(&again);
        assert_near(&many, &one);
        assert_memory_equal(many.o, again.o, sizeof many.o);
        assert_memory_equal(many.lse, again.lse, sizeof many.lse);
    }
    /* O and lse of 7 splits in float32 */
    many.args.num_splits = 7;
    const size_t floats = (size_t)(7 * BATCH * HEADS_Q * ROWS);
    assert_true(fk_kernel_workspace(many.kernel, &many.args) >= floats * (DIM + 1) * sizeof(float));
    fk_device_free(context, many.workspace);
    fk_device_free(context, again.workspace);
    close_problem(&one);
}

/* One split of a head's own tiles needs no second kernel. */
static void no_workspace(void **state) {
    (void)state;
    static inputs one, plain;
    open_problem("fwd fp16 d32 dropout gqa causal split", &one);
    one.args.num_splits = 1;
    assert_int_equal(fk_kernel_workspace(one.kernel, &one.args), 0);
    execute(&one);
    open_problem("fwd fp16 d32 gqa causal", &plain);
    execute(&plain);
    assert_near(&one, &plain);
    close_problem(&one);
    close_problem(&plain);
}

static void split_refusals(void **state) {
    (void)state;
    static inputs in;
    open_problem("fwd fp16 d32 gqa causal split", &in);
    fk_args a = in.args;
    a.num_splits = FK_MAX_SPLITS + 1;
    assert_refused(&in, &a, 0, "num_splits is 129; it must be 0 to 128");
    a.num_splits = 2, a.seqlen_q = 1 << 24; /* and not that there is no workspace */
    assert_int_equal(fk_args_layout(&in.p, FK_BSHD, &a), FK_OK);
    a.q = (void *)((uintptr_t)1 << 40), a.k = (void *)((uintptr_t)2 << 40), a.v = (void *)((uintptr_t)3 << 40);
    a.o = (void *)((uintptr_t)4 << 40), a.lse = (float *)((uintptr_t)5 << 40);
    assert_refused(&in, &a, 0, "the limit is");
    a = in.args;
    a.num_splits = -1;
    assert_refused(&in, &a, 0, "num_splits is -1");
    assert_int_equal(fk_reference(&in.p, &a, FK_REFERENCE_F64, NULL, NULL), FK_BAD_ARGUMENT);
    assert_int_equal(fk_kernel_workspace(in.kernel, &a), 0);
    a.num_splits = 2;
    assert_refused(&in, &a, 0, "workspace is null; this launch needs");
    const size_t needed = fk_kernel_workspace(in.kernel, &a);
    assert_int_equal(fk_device_malloc(context, needed, &in.workspace), FK_OK);
    assert_refused(&in, &a, needed - 1, "workspace_bytes is");
    a.o = in.workspace;
    assert_refused(&in, &a, needed, "workspace");
    a.o = (char *)in.workspace + needed - 16; /* its end, too */
    assert_refused(&in, &a, needed, "workspace at 0x");
    close_problem(&in);
    open_problem("fwd fp16 d32 gqa causal", &in);
    a = in.args;
    a.num_splits = 2;
    assert_refused(&in, &a, 0, "num_splits is 2; it must be 0, as the problem does not say split");
    close_problem(&in);
}

/* ---- pages -------------------------------------------------------------------------------------------- */

/* The same results with and without pages, of several sizes. */
static void compare_pages(const char *spelling, const int *sizes, size_t num_sizes) {
    static inputs rows, paged;
    open_problem("fwd fp16 d32 gqa causal", &rows);
    open_problem(spelling, &paged);
    execute(&rows);
    for (size_t i = 0; i < num_sizes; i++) {
        cut(&paged, sizes[i]);
        execute(&paged);
        assert_memory_equal(paged.o, rows.o, sizeof rows.o); /* the same tiles in the same order */
        assert_memory_equal(paged.lse, rows.lse, sizeof rows.lse);
        double exact[BATCH * HEADS_Q * ROWS * DIM], lse[BATCH * HEADS_Q * ROWS];
        assert_int_equal(fk_reference(&paged.p, &paged.args, FK_REFERENCE_F64, exact, lse), FK_OK);
        for (size_t j = 0; j < sizeof lse / sizeof *lse; j++)
            assert_true(fabs(lse[j] - (double)paged.lse[j]) < 1e-3);
    }
    close_problem(&rows);
    close_problem(&paged);
}

static void pages(void **state) {
    (void)state;
    static const int sizes[] = {1, 3, 16, KEYS - 1, KEYS, 256};
    compare_pages("fwd fp16 d32 gqa causal paged", sizes, sizeof sizes / sizeof *sizes);
    static const int told[] = {128, 256, 384}; /* then one look-up serves several rows */
    compare_pages("fwd fp16 d32 gqa causal paged(128)", told, sizeof told / sizeof *told);
}

/* Copied by TMA, a box of rows at a time. */
static void pages_in_boxes(void **state) {
    (void)state;
    static const int sizes[] = {16, 48, 128, 256};
    fk_context *const other = context;
    fk_context_options options = FK_CONTEXT_OPTIONS_INIT;
    options.device = "emu", options.plan_for = "h200", options.cache_dir = store_dir;
    assert_int_equal(fk_context_create(&options, &context), FK_OK);
    compare_pages("fwd fp16 d32 gqa causal paged(16)", sizes, sizeof sizes / sizeof *sizes);
    fk_context_destroy(context);
    context = other;
}

static void page_refusals(void **state) {
    (void)state;
    static inputs in;
    open_problem("fwd fp16 d32 gqa causal paged", &in);
    cut(&in, 16);
    const fk_args good = in.args;
    fk_args a = good;
    static inputs boxes;
    open_problem("fwd fp16 d32 gqa causal paged(16)", &boxes);
    cut(&boxes, 16);
    boxes.args.page_size = 24;
    assert_refused(&boxes, &boxes.args, 0, "page_size is 24; the problem's paged says that it is a multiple of 16");
    close_problem(&boxes);
    a.page_size = 0;
    assert_refused(&in, &a, 0, "page_size is 0; it must be 1 to 1073741824");
    a = good, a.num_pages = 0;
    assert_refused(&in, &a, 0, "num_pages is 0; it must be 1 to");
    a = good, a.page_table = NULL;
    assert_refused(&in, &a, 0, "page_table is null");
    a = good, a.page_table_stride = -1;
    assert_refused(&in, &a, 0, "page_table_stride is -1");
    a = good, a.k_stride[0] = -8;
    assert_refused(&in, &a, 0, "k_stride[0]");
    in.table[TABLE + 1] = 99; /* the emulator looks at what a GPU would trust */
    assert_refused(&in, &good, 0, "page_table[1, 1] is 99; it must be 0 to num_pages - 1, 26");
    double lse[BATCH * HEADS_Q * ROWS];
    assert_int_equal(fk_reference(&in.p, &good, FK_REFERENCE_F64, NULL, lse), FK_BAD_ARGUMENT);
    close_problem(&in);
}

/* ---- words -------------------------------------------------------------------------------------------- */

static void words(void **state) {
    (void)state;
    char spelling[FK_MAX_SPELLING];
    fk_problem p;
    assert_int_equal(fk_problem_parse("fwd paged bf16 split d64 causal", &p), FK_OK);
    assert_true(p.split && p.paged);
    assert_int_equal(fk_problem_spell(&p, spelling, sizeof spelling), FK_OK);
    assert_string_equal(spelling, "fwd bf16 d64 causal split paged");
    assert_int_equal(fk_problem_parse("bwd bf16 d64 split", &p), FK_BAD_PROBLEM);
    assert_non_null(strstr(fk_last_error(), "split is 1: must be 0 for bwd"));
    assert_int_equal(fk_problem_parse("fwd bf16 d64 paged paged", &p), FK_BAD_PROBLEM);
    assert_non_null(strstr(fk_last_error(), "paged is given twice"));
    assert_int_equal(fk_problem_parse("fwd paged(16) bf16 d64", &p), FK_OK);
    assert_int_equal(p.paged, 16);
    assert_int_equal(fk_problem_spell(&p, spelling, sizeof spelling), FK_OK);
    assert_string_equal(spelling, "fwd bf16 d64 paged(16)");
    static const char *const bad[] = {"fwd bf16 d64 paged(24)", "fwd bf16 d64 paged(256)", "fwd bf16 d64 paged(4)"};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        assert_int_equal(fk_problem_parse(bad[i], &p), FK_BAD_PROBLEM);
        assert_non_null(strstr(fk_last_error(), "must be 0, 1 (pages of any size), 8, 16, 32, 64 or 128"));
    }
    assert_int_equal(fk_problem_parse("fwd bf16 d64 paged(8,8)", &p), FK_BAD_PROBLEM);
}

static int start(void **state) {
    (void)state;
    fk_context_options options = FK_CONTEXT_OPTIONS_INIT;
    if (!scratch_make(store_dir, sizeof store_dir)) return -1;
    options.device = "emu", options.plan_for = "a100", options.cache_dir = store_dir;
    return fk_context_create(&options, &context) == FK_OK ? 0 : -1;
}

static int stop(void **state) {
    (void)state;
    fk_context_destroy(context);
    return scratch_remove(store_dir) ? 0 : -1;
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(splits),         cmocka_unit_test(no_workspace),
                                       cmocka_unit_test(split_refusals), cmocka_unit_test(pages),
                                       cmocka_unit_test(pages_in_boxes), cmocka_unit_test(page_refusals),
                                       cmocka_unit_test(words)};
    return cmocka_run_group_tests(tests, start, stop);
}
