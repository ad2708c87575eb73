/* dtype e4m3 on the emulator: against float64 of what the inputs stand for, and against what a wrong kernel would give.
 */
#include "e4m3_sample.h"
#include "emulated.h"
#include "store.h"

static void samples(void **state) {
    (void)state;
    static const sample cases[] = {
        {"fwd e4m3 d128", 1, 2, 2, 140, 300, 1, "bbb"},
        {"fwd e4m3 d64 causal", 2, 2, 2, 300, 200, 1, "hbh"},
        {"fwd e4m3 d256 gqa causal", 1, 4, 2, 130, 270, 1, "b-h"},
        {"fwd e4m3 d48 dv80 gqa", 2, 3, 1, 70, 129, 1, "-h-"},
        {"fwd e4m3 d112 dv16 window(60,20)", 1, 2, 2, 200, 250, 1, "---"},
        {"fwd e4m3 d128 gqa packed causal", 3, 4, 2, 150, 200, 1, "bbb"},
        {"fwd e4m3 d64 seqused_k", 3, 2, 2, 60, 300, 1, "bbb"},
        {"fwd e4m3 d64 packed seqused_k dropout", 3, 2, 2, 130, 150, 1, "bbb"},
        {"fwd e4m3 d128 dropout", 1, 2, 2, 100, 280, 1, "--b"},
        {"fwd e4m3 d64 softcap(5) alibi causal", 1, 2, 2, 150, 150, 1, "bb-"},
        {"fwd e4m3 d128 sink", 1, 2, 2, 100, 150, 1, "bbb"},
        {"fwd e4m3 d64 keep=\"(q - k) % 3 != 1\" causal top-left", 1, 2, 2, 150, 300, 1, "b-b"},
        {"fwd e4m3 d16", 1, 1, 1, 1, 1, 1, "bbb"},
        {"fwd e4m3 d64 score=\"s - 0.37 * abs(q - k)\"", 1, 1, 1, 12, 40000, 1, "---"}, /* m rises from -14800 */
        {"fwd e4m3 d128 fast", 1, 2, 2, 140, 300, 1, "bbb"},
        {"fwd e4m3 d64 causal fast", 2, 2, 2, 300, 200, 1, "hbh"},
        {"fwd e4m3 d192 gqa causal fast", 1, 4, 2, 130, 270, 1, "b-h"},
        {"fwd e4m3 d256 fast", 1, 1, 1, 130, 270, 1, "b-h"}, /* no room for sums */
        {"fwd e4m3 d48 dv80 gqa packed seqused_k window(60,20) fast", 3, 2, 1, 130, 150, 1, "bbb"},
        {"fwd e4m3 d64 softcap(5) alibi sink causal fast", 1, 2, 2, 150, 150, 1, "bb-"},
        {"fwd e4m3 d16 fast", 1, 1, 1, 1, 1, 1, "bbb"},
    };
    static const emulated schedules[] = {{"1", "0", "0"}, {"2", "7", "1"}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        for (size_t n = 0; n < sizeof schedules / sizeof *schedules; n++) {
            fk_context *context = emulated_context("h200", store_dir, &schedules[n]);
            tensors t = make(context, &cases[i]);
            point_arrays(&t);
            refer(&t);
            launch(context, &t);
            check(&cases[i], &t);
            release(context, &t);
            fk_context_destroy(context);
        }
}

/* ---- what a wrong kernel would give -------------------------------------------------------------------------- */

/* Moves rows of v as a kernel would that took keys 2 and 8 of each 16 for each other. */
static void permute_keys(tensors *t) {
    const fk_args *a = &t->args;
    for (int64_t k = 0; k + 8 < a->seqlen_k; k += 16)
        for (int64_t c = 0; c < t->p.head_dim_v; c++) {
            uint8_t *x = &t->in[2][(k + 2) * a->v_stride[1] + c], *y = &t->in[2][(k + 8) * a->v_stride[1] + c],
                    was = *x;
            *x = *y, *y = was;
        }
}
static void leave_out_q(tensors *t) {
    t->args.q_descale = NULL;
}
static void leave_out_k(tensors *t) {
    t->args.k_descale = NULL;
}
static void leave_out_v(tensors *t) {
    t->args.v_descale = NULL;
}
static void swap_strides(tensors *t) {
    t->args.v_descale_stride[1] = 1;
}
static void lose_a_key(tensors *t) {
    for (int64_t c = 0; c < t->p.head_dim_v; c++)
        t->in[2][17 * t->args.v_stride[1] + c] = 0;
}

/* The limits must tell the kernel's result from that of a neighbouring problem. */
static void limits_are_sharp(void **state) {
    (void)state;
    static const sample s = {"fwd e4m3 d64", 1, 2, 2, 100, 64, 1.5, "bbb"};
    void (*const faults[])(tensors *) = {permute_keys, leave_out_q, leave_out_k, leave_out_v, swap_strides, lose_a_key};
    fk_context *context = emulated_context("h200", store_dir, &(emulated){"1", "0", "0"});
    for (size_t i = 0; i < sizeof faults / sizeof *faults; i++) {
        tensors t = make(context, &s);
        launch(context, &t);
        faults[i](&t);
        refer(&t);
        const errors e = compare(&t);
        print_message("fault %d: norm %.2e\n", (int)i, e.norm);
        assert_true(e.norm > norm_limit(&t));
        release(context, &t);
    }
    fk_context_destroy(context);
}

/* ---- scores far apart ---------------------------------------------------------------------------------------- */

enum shape { RAMP, FIRST, MIDDLE, LAST, ALL };
typedef struct extreme {
    enum shape shape;
    float nats;
    bool redo; /* beyond float32 even: tiles are computed again */
} extreme;

/* Column 0 makes the scores, by about `nats` where they are to stand out. */
static void make_extreme(const extreme *e, tensors *t) {
    const fk_args *a = &t->args;
    const float unit = 16, per_nat = sqrtf((float)t->p.head_dim) / unit;
    for (int64_t row = 0; row < a->batch * a->seqlen_q * a->num_heads_q; row++)
        t->in[0][row * t->p.head_dim] = fk_e4m3_from_float(unit);
    for (int64_t row = 0; row < a->batch * a->seqlen_k * a->num_heads_kv; row++) {
        const int64_t key = row / a->num_heads_kv % a->seqlen_k, n = a->seqlen_k;
        const bool out = e->shape == ALL || (e->shape == FIRST && key < 3) ||
                         (e->shape == MIDDLE && key >= n / 4 && key < n / 4 + 40) || (e->shape == LAST && key >= n - 3);
        const float share = e->shape == RAMP ? (float)(n - key) / (float)n : out ? 1 : 0;
        t->in[1][row * t->p.head_dim] = fk_e4m3_from_float(share * e->nats * per_nat);
    }
}

/* Words of tiles in the workspace behind four of its own are written where a tile is computed again. */
static int count_redone(fk_context *context, tensors *t) {
    enum { HEADER = 4, PATTERN = 0x5a };
    fk_kernel *kernel = kernel_of(context, t);
    fk_kernel_info info;
    assert_int_equal(fk_kernel_describe(kernel, &info), FK_OK);
    const size_t bytes = fk_kernel_workspace(kernel, &t->args);
    uint32_t *workspace = allocate(context, bytes);
    memset(workspace, PATTERN, bytes);
    memset(t->o, 0xff, t->rows * (size_t)t->p.head_dim_v * sizeof *t->o);
    if (fk_execute(kernel, &t->args, workspace, bytes, NULL)) fail_msg("%s", fk_last_error());
    const int64_t tiles = (t->args.seqlen_q + info.plan.block_m - 1) / info.plan.block_m * t->args.num_heads_q;
    int redone = 0;
    for (int64_t i = 0; i < tiles * t->args.batch; i++)
        redone += workspace[HEADER + i] != 0x01010101u * PATTERN;
    fk_device_free(context, workspace);
    fk_kernel_destroy(kernel);
    return redone;
}

static void extremes(void **state) {
    (void)state;
    static const extreme cases[] = {{RAMP, 12, false},  {RAMP, -12, false}, {RAMP, 190, false}, {FIRST, 4, false},
                                    {FIRST, 40, false}, {MIDDLE, 3, false}, {LAST, 60, false},  {ALL, 60, false},
                                    {ALL, -60, false},  {FIRST, 200, true}, {MIDDLE, 200, true}};
    static const sample shapes[] = {
        {"fwd e4m3 d64", 1, 2, 2, 200, 500, 1, "---"},
        {"fwd e4m3 d128", 1, 1, 1, 140, 400, 1, "-h-"},
        {"fwd e4m3 d256", 1, 1, 1, 130, 390, 1, "---"},
        {"fwd e4m3 d128 causal", 1, 1, 1, 300, 427, 1, "--b"}, /* a row's first tile may show it no key */
        {"fwd e4m3 d64 dropout", 1, 1, 1, 100, 400, 1, "---"},
        {"fwd e4m3 d64 fast", 1, 2, 2, 200, 500, 1, "---"},
        {"fwd e4m3 d128 causal fast", 1, 1, 1, 300, 427, 1, "--b"},
    };
    fk_context *context = emulated_context("h200", store_dir, &(emulated){"2", "3", "1"});
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++)
        for (size_t j = 0; j < sizeof cases / sizeof *cases; j++) {
            tensors t = make(context, &shapes[i]);
            make_extreme(&cases[j], &t);
            refer(&t);
            const int redone = count_redone(context, &t);
            print_message("shape %d, %g nats, %d tiles again: ", (int)cases[j].shape, (double)cases[j].nats, redone);
            check(&shapes[i], &t);
            const bool redoes = cases[j].redo && !t.p.fast; /* there m rises before there are weights */
            if (!strstr(shapes[i].spelling, "causal")) assert_int_equal(redone > 0, redoes);
            release(context, &t);
        }
    fk_context_destroy(context);
}

/* What lies past the keys may be NaN, and so may the workspace. */
static void nan_tails(void **state) {
    (void)state;
    static const sample s = {"fwd e4m3 d64 seqused_k", 2, 2, 2, 60, 300, 1, "bbb"};
    fk_context *context = emulated_context("h200", store_dir, &(emulated){"1", "0", "0"});
    tensors t = make(context, &s);
    point_arrays(&t);
    t.used[0] = 130, t.used[1] = 3;
    for (int64_t b = 0; b < 2; b++)
        for (int i = 1; i < 3; i++)
            for (int64_t at = t.used[b] * 2 * 64; at < 300 * 2 * 64; at++)
                t.in[i][b * 300 * 2 * 64 + at] = 0x7f;
    refer(&t);
    launch(context, &t);
    check(&s, &t);
    release(context, &t);
    fk_context_destroy(context);
}

/* ---- arguments ----------------------------------------------------------------------------------------------- */

static void expect_refusal(const fk_kernel *kernel, const fk_args *a, const char *message) {
    static _Alignas(256) char workspace[1 << 20];
    assert_int_equal(fk_execute(kernel, a, workspace, sizeof workspace, NULL), FK_BAD_ARGUMENT);
    if (!strstr(fk_last_error(), message)) fail_msg("\"%s\" is not in \"%s\"", message, fk_last_error());
}

static void arguments(void **state) {
    (void)state;
    static const sample s = {"fwd e4m3 d64", 2, 2, 2, 60, 300, 1, "bbb"},
                        other = {"fwd bf16 d64", 1, 1, 1, 1, 1, 1, "---"};
    fk_context *context = emulated_context("h200", store_dir, &(emulated){"1", "0", "0"});
    tensors t = make(context, &s);
    fk_kernel *kernel = kernel_of(context, &t), *bf16;
    fk_problem p;
    /* 16 and 4 for each of 4 tiles, in parts of 256; then 5 tiles of 64 keys, in rows of 128 bytes, of 4 heads. */
    assert_int_equal(fk_kernel_workspace(kernel, &t.args), 256 + 5 * 128 * 64 * 4);
    fk_args a = t.args;
    a.q_descale_stride[0] = -1, expect_refusal(kernel, &a, "q_descale_stride[0] (batch) is -1"), a = t.args;
    a.v_descale_stride[1] = INT64_MAX,
    expect_refusal(kernel, &a, "v_descale_stride[1] (kv head) is 9223372036854775807");
    a = t.args, a.k_descale = (const float *)((uintptr_t)t.descale[1] + 2);
    expect_refusal(kernel, &a, "it must be aligned to 4 bytes");
    a = t.args, a.k_stride[1] = 136,
    expect_refusal(kernel, &a, "k_stride[1] (seqlen) is 136; it must be a multiple of 16");
    a = t.args, a.o_stride[0] = 60 * 136, a.o_stride[1] = 136; /* o is bf16: a multiple of 8 will do */
    a.v_descale = (const float *)t.o, expect_refusal(kernel, &a, "o at 0x");
    assert_non_null(strstr(fk_last_error(), "overlaps v_descale"));
    assert_int_equal(fk_problem_parse(other.spelling, &p), FK_OK);
    assert_int_equal(fk_kernel_create(context, &p, &bf16), FK_OK);
    a = t.args;
    expect_refusal(bf16, &a, "q_descale is given; it must be null unless dtype is e4m3");
    fk_kernel_destroy(bf16);
    fk_kernel_destroy(kernel);
    release(context, &t);
    fk_context_destroy(context);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(samples),   cmocka_unit_test(limits_are_sharp), cmocka_unit_test(extremes),
        cmocka_unit_test(nan_tails), cmocka_unit_test(arguments),
    };
    return cmocka_run_group_tests(tests, make_store, remove_store);
}
