/* dtype e4m3 on the emulator: against float64 of what the inputs stand for, and against what a wrong kernel would give.
 *
 * Limits. A weight is rounded to 3 bits of mantissa, by at most 2^-4 of itself, or where it is small by 2^-10, of a sum
 * of at least 2^5: no element errs by more than (2^-4 + keys 2^-15 + 2^-9) times the largest value that v stands for.
 * Such errors of many weights are independent, so that they make about 2^-5 of the result's norm at most, whatever a
 * row's weights are; a quarter more is allowed. Keys in another order, or a descale left out, change all of it. */
#include "emulated.h"
#include "launch.h"
#include "runtime/emulator/half.h"
#include "scratch.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

enum { MAX_BATCH = 3 };
static char store_dir[256];

typedef struct sample {
    const char *spelling;
    int64_t batch, num_heads_q, num_heads_kv, seqlen_q, seqlen_k; /* packed: the longest */
    double softmax_scale;                                         /* times 1 / sqrt(head_dim) */
    const char *family_of_descales; /* of q, k, v: '-' none, 'h' by head, 'b' by batch too */
} sample;

/* Of one run; host memory, which is the emulator's. */
typedef struct tensors {
    fk_problem p;
    fk_args args;
    uint8_t *in[3];
    uint16_t *o;
    float *lse, *descale[3], slope[8];
    int32_t cu_q[MAX_BATCH + 1], cu_k[MAX_BATCH + 1], used[MAX_BATCH];
    double *exact, *exact_lse;
    size_t rows, bytes[3];
} tensors;

static uint32_t next(uint32_t *seed) {
    return *seed = *seed * 1664525u + 1013904223u;
}

/* Nearly normal: the sum of four uniforms. */
static float draw(uint32_t *seed) {
    float x = 0;
    for (int j = 0; j < 4; j++)
        x += (float)(next(seed) >> 8) / 16777216.0f - 0.5f;
    return x * 1.7f;
}

static void *allocate(fk_context *context, size_t bytes) {
    void *memory = NULL;
    if (fk_device_malloc(context, bytes, &memory)) fail_msg("%s", fk_last_error());
    return memory;
}

static void set_lengths(const sample *s, tensors *t) {
    fk_args *a = &t->args;
    for (int64_t b = 0; b < a->batch; b++) {
        t->cu_q[b + 1] = t->cu_q[b] + (int32_t)(b == 1 ? s->seqlen_q / 3 : s->seqlen_q);
        t->cu_k[b + 1] = t->cu_k[b] + (int32_t)(b == 1 ? s->seqlen_k / 2 + 1 : s->seqlen_k);
        t->used[b] = (int32_t)(b == 1 ? 0 : s->seqlen_k * 2 / 3);
    }
    a->cu_seqlens_q = t->cu_q, a->cu_seqlens_k = t->cu_k, a->seqused_k = t->used;
    a->total_q = t->cu_q[a->batch], a->total_k = t->cu_k[a->batch];
}

static void set_descales(fk_context *context, const sample *s, tensors *t) {
    fk_args *a = &t->args;
    int64_t *const stride[3] = {a->q_descale_stride, a->k_descale_stride, a->v_descale_stride};
    const float **const to[3] = {&a->q_descale, &a->k_descale, &a->v_descale};
    uint32_t seed = 77;
    for (int i = 0; i < 3; i++) {
        const int64_t count = a->batch * a->num_heads_kv;
        if (s->family_of_descales[i] == '-') continue;
        t->descale[i] = allocate(context, (size_t)(2 * count) * sizeof(float));
        for (int64_t j = 0; j < 2 * count; j++)
            t->descale[i][j] = 0.5f + (float)(next(&seed) >> 24) / 128.0f;
        *to[i] = t->descale[i];
        stride[i][0] = s->family_of_descales[i] == 'b' ? 2 * a->num_heads_kv : 0;
        stride[i][1] = 2; /* as by the caller's strides, every second one */
    }
}

static tensors make(fk_context *context, const sample *s) {
    tensors t = {.args = FK_ARGS_INIT};
    fk_args *a = &t.args;
    uint32_t seed = 5;
    if (fk_problem_parse(s->spelling, &t.p)) fail_msg("%s", fk_last_error());
    a->batch = s->batch, a->num_heads_q = s->num_heads_q, a->num_heads_kv = s->num_heads_kv;
    a->seqlen_q = s->seqlen_q, a->seqlen_k = s->seqlen_k;
    set_lengths(s, &t);
    const int64_t rows_q = t.p.packed ? a->total_q : a->batch * a->seqlen_q;
    const int64_t rows_k = t.p.packed ? a->total_k : a->batch * a->seqlen_k;
    const int64_t elements[3] = {rows_q * a->num_heads_q * t.p.head_dim, rows_k * a->num_heads_kv * t.p.head_dim,
                                 rows_k * a->num_heads_kv * t.p.head_dim_v};
    for (int i = 0; i < 3; i++) {
        t.bytes[i] = (size_t)elements[i];
        t.in[i] = allocate(context, t.bytes[i]);
        for (int64_t j = 0; j < elements[i]; j++)
            t.in[i][j] = fk_e4m3_from_float(draw(&seed));
    }
    t.rows = (size_t)(rows_q * a->num_heads_q);
    const size_t o_elements = t.rows * (size_t)t.p.head_dim_v;
    t.o = allocate(context, o_elements * sizeof *t.o);
    t.lse = allocate(context, t.rows * sizeof *t.lse);
    t.exact = malloc(o_elements * sizeof *t.exact);
    t.exact_lse = malloc(t.rows * sizeof *t.exact_lse);
    assert_true(t.exact && t.exact_lse);
    assert_int_equal(fk_args_layout(&t.p, t.p.packed ? FK_BHSD : FK_BSHD, a), FK_OK);
    a->q = t.in[0], a->k = t.in[1], a->v = t.in[2], a->o = t.o, a->lse = t.lse;
    a->softmax_scale = (float)(s->softmax_scale / sqrt((double)t.p.head_dim));
    if (t.p.dropout) a->dropout_p = 0.25, a->dropout_seed = 3;
    for (int i = 0; i < 8; i++)
        t.slope[i] = 0.02f * (float)(i + 1);
    set_descales(context, s, &t);
    return t;
}

/* What the problem's arrays, which are slopes and sinks of heads, are; pointers into t, so that it must stay. */
static void point_arrays(tensors *t) {
    for (int i = 0; i < FK_MAX_ARRAYS; i++)
        t->args.array[i] = (fk_array){.data = t->slope, .stride = {1}};
    t->args.cu_seqlens_q = t->cu_q, t->args.cu_seqlens_k = t->cu_k, t->args.seqused_k = t->used;
}

static void release(fk_context *context, tensors *t) {
    for (int i = 0; i < 3; i++) {
        fk_device_free(context, t->in[i]);
        fk_device_free(context, t->descale[i]);
    }
    fk_device_free(context, t->o);
    fk_device_free(context, t->lse);
    free(t->exact);
    free(t->exact_lse);
}

static void refer(tensors *t) {
    if (fk_reference(&t->p, &t->args, FK_REFERENCE_F64, t->exact, t->exact_lse)) fail_msg("%s", fk_last_error());
}

/* Where element c of a row of the reference lies in o; row: as the reference counts them. */
static double got(const tensors *t, int64_t row, int64_t c) {
    const fk_args *a = &t->args;
    const int64_t length = t->p.packed ? a->total_q : a->seqlen_q;
    const int64_t i = row % length, h = row / length % a->num_heads_q, b = row / length / a->num_heads_q;
    return (double)fk_bf16_to_float(t->o[b * a->o_stride[0] + i * a->o_stride[1] + h * a->o_stride[2] + c]);
}

typedef struct errors {
    double largest, norm; /* norm: relative */
} errors;

static errors compare(const tensors *t) {
    errors e = {0, 0};
    double square = 1e-300;
    for (int64_t row = 0; row < (int64_t)t->rows; row++)
        for (int64_t c = 0; c < t->p.head_dim_v; c++) {
            const double want = t->exact[row * t->p.head_dim_v + c], off = fabs(got(t, row, c) - want);
            if (!isfinite(off)) fail_msg("row %d, column %d is %g, not %g", (int)row, (int)c, got(t, row, c), want);
            e.largest = fmax(e.largest, off);
            e.norm += off * off;
            square += want * want;
        }
    e.norm = sqrt(e.norm / square);
    return e;
}

static double largest_value(const tensors *t) {
    double largest = 0, by = 1;
    for (size_t i = 0; i < t->bytes[2]; i++)
        largest = fmax(largest, fabs((double)fk_e4m3_to_float(t->in[2][i])));
    for (int64_t i = 0; t->descale[2] && i < 2 * t->args.batch * t->args.num_heads_kv; i++)
        by = fmax(by, (double)t->descale[2][i]);
    return largest * by / (1 - t->args.dropout_p);
}

static const double norm_limit = 0x1.4p-5;

static void check(const sample *s, const tensors *t) {
    const errors e = compare(t);
    const double limit = (0x1p-4 + (double)s->seqlen_k * 0x1p-15 + 0x1p-9) * largest_value(t);
    print_message("%s, scale %g: error %.2e (limit %.2e), norm %.2e\n", s->spelling, s->softmax_scale, e.largest, limit,
                  e.norm);
    assert_true(e.largest <= limit);
    assert_true(e.norm <= norm_limit);
    for (size_t row = 0; row < t->rows; row++) {
        const double lse = (double)t->lse[row], want = t->exact_lse[row];
        if (isinf(want) ? lse != want : !(fabs(lse - want) <= 1e-3 + 1e-5 * fabs(want)))
            fail_msg("%s: lse of row %d is %g, not %g", s->spelling, (int)row, lse, want);
    }
}

static fk_kernel *kernel_of(fk_context *context, const tensors *t) {
    fk_kernel *kernel;
    fk_kernel_info info;
    if (fk_kernel_create(context, &t->p, &kernel)) fail_msg("%s", fk_last_error());
    assert_int_equal(fk_kernel_describe(kernel, &info), FK_OK);
    assert_string_equal(info.plan.family, "wgmma");
    return kernel;
}

static void launch(fk_context *context, tensors *t) {
    fk_kernel *kernel = kernel_of(context, t);
    memset(t->o, 0xff, t->rows * (size_t)t->p.head_dim_v * sizeof *t->o);
    if (launch_once(context, kernel, &t->args)) fail_msg("%s", fk_last_error());
    fk_kernel_destroy(kernel);
}

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
        assert_true(e.norm > norm_limit);
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
            if (!strstr(shapes[i].spelling, "causal")) assert_int_equal(redone > 0, cases[j].redo);
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
    /* 16 and 4 for each of 4 tiles, in parts of 256; then 3 tiles of 128 keys by 64 columns, of 4 heads. */
    assert_int_equal(fk_kernel_workspace(kernel, &t.args), 256 + 3 * 128 * 64 * 4);
    fk_args a = t.args;
    a.q_descale_stride[0] = -1, expect_refusal(kernel, &a, "q_descale_stride[0] (batch) is -1"), a = t.args;
    a.v_descale_stride[1] = INT64_MAX,
    expect_refusal(kernel, &a, "v_descale_stride[1] (kv head) is 9223372036854775807");
    a = t.args, a.k_descale = (const float *)((uintptr_t)t.descale[1] + 2);
    expect_refusal(kernel, &a, "it must be aligned to 4 bytes");
    a = t.args, a.k_stride[1] = 136,
    expect_refusal(kernel, &a, "k_stride[1] (seqlen) is 136; it must be a multiple of 16");
    a = t.args, a.o_stride[1] = 136; /* o is bf16: a multiple of 8 will do */
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

static int start(void **state) {
    (void)state;
    return scratch_make(store_dir, sizeof store_dir) ? 0 : -1;
}

static int stop(void **state) {
    (void)state;
    return scratch_remove(store_dir) ? 0 : -1;
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(samples),   cmocka_unit_test(limits_are_sharp), cmocka_unit_test(extremes),
        cmocka_unit_test(nan_tails), cmocka_unit_test(arguments),
    };
    return cmocka_run_group_tests(tests, start, stop);
}
