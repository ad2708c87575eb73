/* Kernels whose last tiles of queries come in parts of their keys, on the emulator with few SMs: results against
 * float64, the same bits each time, parts that must be computed once more, and who gets such a kernel. */
#include "array_sample.h"
#include "emulated.h"
#include "runtime/object.h"
#include "sample.h"
#include "store.h"

enum { PATTERN = 0x5a5a5a5a };
typedef struct parts_case {
    sample s;
    const char *sms;
    bool late, steep; /* parts of two sizes; keys so much larger the sooner they come that weights overflow */
    int rows;         /* of a tile of queries, which few of these have smaller; 0: any */
    bool many;        /* parts of a row, which warps share */
} parts_case;

/* Keys are visited from the last to the first. */
static void make_steep(fk_context *context, const sample *s, sample_tensors *t) {
    const int64_t row = s->num_heads_kv * t->p.head_dim;
    for (size_t i = 0; i < t->elements[1]; i++) {
        const double place = (double)((int64_t)i / row % s->seqlen_k) / (double)s->seqlen_k;
        const float x = t->p.dtype == FK_BF16 ? fk_bf16_to_float(t->data[1][i]) : fk_fp16_to_float(t->data[1][i]);
        const float steep = x * (float)(60.0 * (1.0 - place));
        t->data[1][i] = t->p.dtype == FK_BF16 ? fk_bf16_from_float(steep) : fk_fp16_from_float(steep);
    }
    void *keys = (void *)(uintptr_t)t->args.k;
    assert_int_equal(fk_copy_to_device(context, keys, t->data[1], t->elements[1] * 2), FK_OK);
}

/* Returns how many tiles, or parts of them, were computed once more; in `parts`. */
static void launch(fk_context *context, const fk_kernel *kernel, const fk_args *args, const fk_persistent *tiles,
                   int *redone, int *redone_parts) {
    const size_t bytes = fk_kernel_workspace(kernel, args);
    uint32_t *words = malloc(bytes);
    void *workspace;
    assert_non_null(words);
    assert_int_equal(bytes, tiles->bytes);
    assert_int_equal(fk_device_malloc(context, bytes, &workspace), FK_OK);
    for (size_t i = 0; i < bytes / 4; i++)
        words[i] = PATTERN;
    assert_int_equal(fk_copy_to_device(context, workspace, words, bytes), FK_OK);
    if (fk_execute(kernel, args, workspace, bytes, NULL) || fk_synchronize(context, NULL))
        fail_msg("%s", fk_last_error());
    assert_int_equal(fk_copy_from_device(context, words, workspace, bytes), FK_OK);
    *redone = *redone_parts = 0;
    for (int64_t i = 0; i < tiles->num_tiles; i++) {
        *redone += words[4 + i] != PATTERN;
        *redone_parts += words[4 + i] != PATTERN && i >= tiles->first_part;
    }
    fk_device_free(context, workspace);
    free(words);
}

static void run(const parts_case *c) {
    const sample *s = &c->s;
    const fk_shape shape = {s->batch, s->num_heads_q, s->num_heads_kv, s->seqlen_q, s->seqlen_k};
    uint16_t *first = NULL;
    for (int turn = 0; turn < 2; turn++) {
        const emulated how = {c->sms, turn ? "7" : "3", turn ? "1" : "0"};
        fk_context *context = emulated_context("h200", store_dir, &how);
        fk_kernel *kernel;
        fk_persistent tiles;
        sample_tensors t;
        int redone, redone_parts;
        array_sample arrays;
        assert_true(sample_make(context, s, &t));
        arrays_make(context, &t.p, &t.host, &t.args, &arrays);
        if (c->steep) make_steep(context, s, &t);
        if (fk_kernel_create_for(context, &t.p, &shape, &kernel)) fail_msg("%s", fk_last_error());
        assert_true(kernel->info.plan.parts);
        if (c->rows) assert_int_equal(kernel->info.plan.block_m, c->rows);
        assert_true(fk_persistent_lay_out(kernel, &t.args, &tiles));
        assert_true(tiles.num_splits > 1);
        assert_int_equal(tiles.late_part < tiles.num_tiles, c->late);
        assert_int_equal(tiles.num_splits > FK_PARTS_ALONE, c->many);
        launch(context, kernel, &t.args, &tiles, &redone, &redone_parts);
        assert_int_equal(redone_parts > 0, c->steep);
        if (!c->steep) assert_int_equal(redone, 0);
        sample_fetch(context, s, &t);
        if (turn == 0) {
            if (t.p.fast) sample_prescale(&t);
            sample_check(s, &t);
            first = malloc(t.elements[3] * 2);
            assert_non_null(first);
            memcpy(first, t.data[3], t.elements[3] * 2);
        } else {
            assert_memory_equal(first, t.data[3], t.elements[3] * 2);
        }
        fk_kernel_destroy(kernel);
        arrays_free(context, &arrays);
        sample_free(context, &t);
        fk_context_destroy(context);
    }
    free(first);
}

static void in_parts(void **state) {
    (void)state;
    static const parts_case cases[] = {
        {{"fwd bf16 d128", "h200", 1, 2, 2, 300, 4101, FK_BSHD, 0}, "4", false, false, 0, false},
        {{"fwd fp16 d128 gqa", "h200", 1, 2, 1, 257, 4096, FK_BHSD, 0}, "11", true, false, 0, false},
        {{"fwd bf16 d64", "h200", 2, 1, 1, 600, 4500, FK_BSHD, 0}, "5", false, false, 0, false},
        {{"fwd bf16 d256 dv128", "h200", 1, 1, 1, 520, 3500, FK_BSHD, 0}, "4", false, false, 0, false},
        {{"fwd bf16 d128", "h200", 1, 1, 1, 600, 4101, FK_BSHD, 0}, "3", false, true, 0, false},
        {{"fwd fp16 d64", "h200", 1, 1, 1, 300, 4200, FK_BSHD, 0}, "6", false, true, 0, false},
        {{"fwd bf16 d128 causal", "h200", 1, 2, 2, 300, 4101, FK_BSHD, 0}, "16", true, false, 0, false},
        /* the first rows' last keys are those of full tiles */
        {{"fwd bf16 d128 causal", "h200", 1, 1, 1, 300, 4395, FK_BSHD, 0}, "16", false, false, 0, false},
        {{"fwd fp16 d64 gqa causal", "h200", 1, 2, 1, 700, 4200, FK_BHSD, 0}, "20", false, false, 0, false},
        {{"fwd bf16 d128 causal top-left", "h200", 1, 1, 1, 2100, 4500, FK_BSHD, 0}, "32", true, false, 0, false},
        {{"fwd bf16 d128 causal", "h200", 1, 1, 1, 500, 4101, FK_BSHD, 0}, "3", false, true, 0, false},
        {{"fwd bf16 d64 fast", "h200", 2, 1, 1, 600, 4500, FK_BSHD, 0}, "5", false, false, 0, false},
        {{"fwd bf16 d128 causal fast", "h200", 1, 1, 1, 500, 4101, FK_BSHD, 0}, "3", false, true, 0, false},
        {{"fwd bf16 d128 alibi", "h200", 1, 2, 2, 300, 4101, FK_BSHD, 0}, "4", false, false, 0, false},
        {{"fwd bf16 d128 alibi causal", "h200", 1, 2, 2, 300, 4101, FK_BSHD, 0}, "16", true, false, 0, false},
        {{"fwd bf16 d64 softcap(30) causal", "h200", 1, 1, 1, 500, 6000, FK_BSHD, 0}, "8", true, false, 0, false},
        {{"fwd bf16 d64 causal", "h200", 1, 2, 2, 64, 8191, FK_BSHD, 0}, "132", false, false, 64, true},
        {{"fwd bf16 d128 causal", "h200", 1, 2, 2, 33, 8300, FK_BHSD, 0}, "37", false, false, 64, true},
        {{"fwd fp16 d64", "h200", 1, 1, 1, 50, 8192, FK_BSHD, 0}, "132", false, true, 64, true},
        {{"fwd fp16 d64 causal", "h200", 1, 2, 2, 200, 8300, FK_BHSD, 0}, "37", false, false, 128, true},
        {{"fwd bf16 d64 causal", "h200", 1, 1, 1, 100, 8192, FK_BSHD, 0}, "20", false, true, 128, true},
        /* fewer tiles than SMs */
        {{"fwd fp16 d64 causal", "h200", 1, 1, 1, 700, 700, FK_BSHD, 0}, "132", false, false, 128, false},
        {{"fwd bf16 d128 gqa", "h200", 1, 2, 1, 650, 900, FK_BHSD, 0}, "132", false, true, 0, false},
        /* tiles of a bias, which TMA copies, or threads where rows begin anywhere */
        {{"fwd bf16 d64 bias", "h200", 1, 2, 2, 150, 1000, FK_BSHD, 0}, "132", false, false, 128, false},
        {{"fwd fp16 d64 bias causal", "h200", 1, 2, 2, 400, 901, FK_BSHD, 0}, "132", false, false, 128, false},
        {{"fwd bf16 d128 array=bias:bf16[b][h][q][k] bias", "h200", 1, 2, 2, 140, 801, FK_BSHD, 0},
         "132",
         false,
         false,
         128,
         false},
        /* clusters of two */
        {{"fwd bf16 d320 causal", "h200", 1, 2, 2, 200, 4101, FK_BSHD, 0}, "12", false, false, 128, false},
        {{"fwd fp16 d576 dv512", "h200", 1, 1, 1, 300, 2300, FK_BHSD, 0}, "9", true, true, 128, false},
        {{"fwd bf16 d576 dv512", "h200", 1, 1, 1, 64, 2300, FK_BSHD, 0}, "132", false, false, 64, true},
    };
    for (size_t i = 0; i < emulated_cases(sizeof cases / sizeof *cases); i++)
        run(&cases[i]);
}

/* One kernel for all that have long rounds, and few of them, but for what has fewer queries than its tile has rows;
 * that for all sizes serves the others. */
static void who_gets_one(void **state) {
    (void)state;
    static const emulated plain = {"132", "0", "0"};
    enum { NO_PARTS = -1, OF_ALL /* as the kernel for all sizes */ };
    static const struct {
        const char *spelling;
        fk_shape shape;
        int block_m;
    } cases[] = {
        {"fwd bf16 d128", {1, 16, 16, 16384, 16384}, OF_ALL},
        {"fwd bf16 d128", {4, 16, 16, 4096, 4096}, OF_ALL},
        {"fwd bf16 d128", {1, 8, 8, 512, 8192}, OF_ALL},
        {"fwd bf16 d128", {16, 16, 16, 1024, 1024}, NO_PARTS},
        /* fewer tiles than SMs, each of many keys; in the last one smaller tiles are enough */
        {"fwd bf16 d128", {1, 1, 1, 2048, 2048}, OF_ALL},
        {"fwd bf16 d128", {2, 2, 2, 1024, 1024}, OF_ALL},
        {"fwd bf16 d128", {1, 8, 8, 512, 512}, NO_PARTS},
        {"fwd bf16 d64 causal", {1, 1, 1, 2048, 2048}, 128},
        {"fwd bf16 d256", {1, 4, 4, 1024, 1024}, NO_PARTS},
        {"fwd bf16 d128", {64, 96, 96, 8192, 8192}, NO_PARTS},
        {"fwd bf16 d128 causal", {1, 16, 16, 8192, 8192}, NO_PARTS},
        {"fwd bf16 d128 causal", {1, 8, 8, 512, 8192}, OF_ALL},
        {"fwd bf16 d128 causal", {1, 1, 1, 16384, 16384}, OF_ALL},
        {"fwd bf16 d128 window(1024,0)", {1, 8, 8, 512, 8192}, NO_PARTS},
        {"fwd bf16 d128 alibi", {1, 16, 16, 8192, 8192}, OF_ALL},
        {"fwd bf16 d128 bias", {1, 16, 16, 8192, 8192}, OF_ALL},
        {"fwd e4m3 d128 bias", {1, 16, 16, 8192, 8192}, NO_PARTS}, /* no tiles of it are copied */
        {"fwd bf16 d64 causal", {1, 8, 8, 512, 16384}, OF_ALL},
        {"fwd bf16 d64 causal", {1, 8, 8, 200, 8192}, 128},
        {"fwd bf16 d64 causal", {1, 4, 4, 100, 32768}, 128},
        {"fwd bf16 d64 causal", {1, 8, 8, 64, 32768}, 64},
        {"fwd bf16 d64 causal", {2, 8, 8, 24, 16384}, 64},
        {"fwd bf16 d64 causal", {2, 8, 8, 2048, 16384}, OF_ALL},
        {"fwd e4m3 d64", {1, 8, 8, 64, 32768}, 64}, /* where the plan for all sizes has teams, which have none */
        {"fwd e4m3 d64", {1, 8, 8, 200, 32768}, 128},
        {"fwd e4m3 d64", {1, 8, 8, 2048, 32768}, NO_PARTS},
    };
    fk_context *context = emulated_context("h200", store_dir, &plain);
    fk_kernel *in_parts = NULL, *of_rows[2] = {NULL};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        fk_problem p;
        fk_kernel *all, *sized;
        fk_kernel_info info;
        fk_plan_info told;
        char lines[2][FK_MAX_PLAN];
        assert_int_equal(fk_problem_parse(cases[i].spelling, &p), FK_OK);
        assert_int_equal(fk_plan_for(context, &p, &cases[i].shape, &told), FK_OK);
        assert_int_equal(fk_kernel_create(context, &p, &all), FK_OK);
        assert_int_equal(fk_kernel_create_for(context, &p, &cases[i].shape, &sized), FK_OK);
        assert_int_equal(fk_kernel_describe(sized, &info), FK_OK);
        assert_int_equal(fk_plan_spell(&told, lines[0], sizeof *lines), FK_OK);
        assert_int_equal(fk_plan_spell(&info.plan, lines[1], sizeof *lines), FK_OK);
        assert_string_equal(lines[0], lines[1]);
        const bool parts = cases[i].block_m != NO_PARTS, smaller = cases[i].block_m > 0;
        assert_int_equal(info.plan.parts, parts);
        if (parts) assert_int_equal(info.plan.block_m, smaller ? cases[i].block_m : all->info.plan.block_m);
        assert_int_equal(sized->variant == FK_IN_PARTS, parts && !smaller);
        if (i > 0 && strcmp(cases[i].spelling, cases[i - 1].spelling) != 0) in_parts = of_rows[0] = of_rows[1] = NULL;
        fk_kernel **const same = smaller ? &of_rows[cases[i].block_m == 128] : &in_parts;
        if (*same && parts) assert_ptr_equal(*same, sized);
        if (parts) *same = sized;
        fk_kernel_destroy(sized);
        fk_kernel_destroy(all);
    }
    fk_context_destroy(context);
}

/* But the diagonal's, no place of a key may say anything that no tile of a bias says. */
static void refused(void **state) {
    (void)state;
    static const char *const spellings[] = {"fwd bf16 d128 window(64,0)", "fwd bf16 d128 dropout", "fwd e4m3 d128 bias",
                                            "fwd bf16 d128 packed", "fwd bf16 d128 causal key_padding"};
    fk_plan_options options = FK_PLAN_OPTIONS_INIT;
    options.plan = "wgmma m128 n128 w12 s2 c1 q2 k2 o2 p1";
    for (size_t i = 0; i < sizeof spellings / sizeof *spellings; i++) {
        fk_problem p;
        fk_plan_info *plans;
        size_t count;
        assert_int_equal(fk_problem_parse(spellings[i], &p), FK_OK);
        assert_int_equal(fk_plan_list(&p, "h200", &options, &plans, &count), FK_UNSUPPORTED);
        if (!strstr(fk_last_error(), "parts 1: must be 0")) fail_msg("%s", fk_last_error());
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(in_parts),
        cmocka_unit_test(who_gets_one),
        cmocka_unit_test(refused),
    };
    return cmocka_run_group_tests(tests, make_sized_store, remove_store);
}
