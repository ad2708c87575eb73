/* Score terms and masks with arrays: the reference against formulas in C, the emulated kernel against the reference,
 * and every argument of an array that is refused. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "launch.h"
#include "runtime/emulator/half.h"
#include "runtime/object.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { B = 2, H = 4, HKV = 2, SQ = 37, SK = 53, D = 16, REACH = 8, BUCKETS = 5 };
#define DIAG (SK - SQ)

static _Alignas(16) uint16_t q[B * SQ * H * D], k[B * SK * HKV * D], v[B * SK * HKV * D], o[B * SQ * H * D];
static float lse[B * H * SQ], slope[H], sink[H], bias[H * SK], table[H * BUCKETS];
static uint16_t bias_fp16[H * SK], bias_bf16[H * SK]; /* the same numbers */
static int32_t bucket[2 * REACH + 1], prefix[B], length[B], first[B], doc_q[B * SQ], doc_k[B * SK], bits[SQ * 2];

static void fill_all(void) {
    uint32_t state = 1;
    uint16_t *const tensors[] = {q, k, v};
    const size_t sizes[] = {sizeof q, sizeof k, sizeof v};
    for (int t = 0; t < 3; t++)
        for (size_t i = 0; i < sizes[t] / 2; i++) {
            state = state * 1664525u + 1013904223u;
            tensors[t][i] = fk_fp16_from_float((float)((int)(state >> 24) - 128) / 64);
        }
    for (int h = 0; h < H; h++) {
        slope[h] = 0.25f / (float)(h + 1), sink[h] = (float)h - 1.5f;
        for (int i = 0; i < SK; i++) {
            bias[h * SK + i] = (float)((h * 7 + i * 3) % 11) / 4 - 1;
            bias_fp16[h * SK + i] = fk_fp16_from_float(bias[h * SK + i]);
            bias_bf16[h * SK + i] = fk_bf16_from_float(bias[h * SK + i]);
        }
        for (int i = 0; i < BUCKETS; i++)
            table[h * BUCKETS + i] = (float)(i * i - h) / 3;
    }
    for (int i = 0; i <= 2 * REACH; i++)
        bucket[i] = i * BUCKETS / (2 * REACH + 1);
    for (int b = 0; b < B; b++) {
        prefix[b] = 20 + 9 * b, length[b] = b ? 0 : 31, first[b] = 3 + 40 * b; /* of batch 1 no key is there */
        for (int i = 0; i < SQ; i++)
            doc_q[b * SQ + i] = i / (9 + b);
        for (int i = 0; i < SK; i++)
            doc_k[b * SK + i] = i / (13 - b);
    }
    for (int i = 0; i < SQ * 2; i++)
        bits[i] = (int32_t)(state = state * 1664525u + 1013904223u);
}

/* ---- formulas ----------------------------------------------------------------------------------------- */

/* What a problem computes for a pair: the score, or -INFINITY; and one more column's score. */
typedef double pair_score(double s, int b, int h, int i, int j);
static double score_of_softcap_alibi(double s, int b, int h, int i, int j) {
    (void)b;
    return 3 * tanh(s / 3) - (double)slope[h] * abs(i + DIAG - j);
}
static double score_of_alibi_softcap(double s, int b, int h, int i, int j) {
    (void)b;
    return 3 * tanh((s - (double)slope[h] * abs(i + DIAG - j)) / 3);
}
static double score_of_bias(double s, int b, int h, int i, int j) {
    (void)b, (void)i;
    return s + (double)bias[h * SK + j];
}
static double score_of_relative(double s, int b, int h, int i, int j) {
    (void)b;
    const int distance = j - i - DIAG;
    return s + (double)table[h * BUCKETS + bucket[(distance < -REACH  ? -REACH
                                                   : distance > REACH ? REACH
                                                                      : distance) +
                                                  REACH]];
}
static double score_of_sink(double s, int b, int h, int i, int j) {
    (void)b, (void)h;
    return j <= i + DIAG ? s : -INFINITY;
}
static double score_of_user(double s, int b, int h, int i, int j) {
    (void)b;
    return s + 0.1 * tanh(s) - abs(i - j) * (double)slope[h];
}
static double score_of_prefix(double s, int b, int h, int i, int j) {
    (void)h;
    return j <= i + DIAG || j < prefix[b] ? s : -INFINITY;
}
static double score_of_paddings(double s, int b, int h, int i, int j) {
    (void)h, (void)i;
    return j < length[b] && j >= first[b] ? s : -INFINITY;
}
static double score_of_documents(double s, int b, int h, int i, int j) {
    (void)h;
    return doc_q[b * SQ + i] == doc_k[b * SK + j] && j <= i + DIAG ? s : -INFINITY;
}
static double score_of_bits(double s, int b, int h, int i, int j) {
    (void)b, (void)h;
    return (uint32_t)bits[i * 2 + j / 32] >> j % 32 & 1 ? s : -INFINITY;
}
static double score_of_chunks(double s, int b, int h, int i, int j) {
    (void)b, (void)h;
    return (i + DIAG) / 10 == j / 10 && (i + DIAG - j) % 3 == 0 ? s : -INFINITY;
}

typedef struct formula {
    const char *spelling;
    pair_score *score;
    bool has_sink;
} formula;

static const formula formulas[] = {
    {"fwd fp16 d16 gqa softcap(3) alibi", score_of_softcap_alibi, false},
    {"fwd fp16 d16 gqa alibi softcap(3)", score_of_alibi_softcap, false},
    {"fwd fp16 d16 gqa bias", score_of_bias, false},
    {"fwd fp16 d16 gqa relative(8)", score_of_relative, false},
    {"fwd fp16 d16 gqa sink causal", score_of_sink, true},
    {"fwd fp16 d16 gqa array=slope:float[h] score=\"s + 0.1 * tanh(s) - abs(q - k) * slope[h]\"", score_of_user, false},
    {"fwd fp16 d16 gqa prefix", score_of_prefix, false},
    {"fwd fp16 d16 gqa key_padding left_padding", score_of_paddings, false},
    {"fwd fp16 d16 gqa key_padding left_padding sink", score_of_paddings, true},
    {"fwd fp16 d16 gqa document causal", score_of_documents, false},
    {"fwd fp16 d16 gqa bits", score_of_bits, false},
    {"fwd fp16 d16 gqa chunked(10) dilated(3)", score_of_chunks, false},
    {"fwd fp16 d16 gqa array=bias:fp16[b][h][q][k] bias", score_of_bias, false},
    {"fwd fp16 d16 gqa array=near:bf16[h][k] score=\"s + near[h][k]\"", score_of_bias, false},
};

/* ---- arguments ---------------------------------------------------------------------------------------- */

static fk_array array_of(const fk_array_decl *decl) {
    if (!strcmp(decl->name, "bias") && decl->type == FK_FLOAT16) return (fk_array){bias_fp16, {0}, {0, SK, 0, 1}};
    const struct {
        const char *name;
        fk_array array;
    } all[] = {
        {"slope", {slope, {0}, {1}}},
        {"sink", {sink, {0}, {1}}},
        {"bias", {bias, {0}, {0, SK, 0, 1}}}, /* one for all of a batch and all queries */
        {"near", {bias_bf16, {0}, {SK, 1}}},
        {"table", {table, {0, BUCKETS}, {BUCKETS, 1}}},
        {"bucket", {bucket, {2 * REACH + 1}, {1}}},
        {"prefix", {prefix, {0}, {1}}},
        {"length", {length, {0}, {1}}},
        {"first", {first, {0}, {1}}},
        {"doc_q", {doc_q, {0}, {SQ, 1}}},
        {"doc_k", {doc_k, {0}, {SK, 1}}},
        {"bits", {bits, {0, 0, 0, 2}, {0, 0, 2, 1}}},
    };
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        if (strcmp(all[i].name, decl->name) == 0) return all[i].array;
    fail_msg("no data for %s", decl->name);
    return (fk_array){NULL, {0}, {0}};
}

static fk_args args_for(const fk_problem *p) {
    fk_args a = FK_ARGS_INIT;
    fk_array_decl decl[FK_MAX_ARRAYS];
    size_t count;
    a.batch = B, a.num_heads_q = H, a.num_heads_kv = HKV, a.seqlen_q = SQ, a.seqlen_k = SK;
    a.q = q, a.k = k, a.v = v, a.o = o, a.lse = lse;
    assert_int_equal(fk_args_layout(p, FK_BSHD, &a), FK_OK);
    assert_int_equal(fk_problem_arrays(p, decl, &count), FK_OK);
    for (size_t i = 0; i < count; i++)
        a.array[i] = array_of(&decl[i]);
    return a;
}

static fk_problem parsed(const char *spelling) {
    fk_problem p;
    if (fk_problem_parse(spelling, &p)) fail_msg("%s", fk_last_error());
    return p;
}

/* ---- numbers ------------------------------------------------------------------------------------------ */

static double dot(int b, int h, int i, int j) {
    double sum = 0;
    for (int c = 0; c < D; c++)
        sum += (double)fk_fp16_to_float(q[((b * SQ + i) * H + h) * D + c]) *
               (double)fk_fp16_to_float(k[((b * SK + j) * HKV + h / 2) * D + c]);
    return sum / sqrt(D);
}

static void naive_row(const formula *f, int b, int h, int i, double out[D], double *row_lse) {
    double p[SK], sum = f->has_sink ? exp((double)sink[h]) : 0; /* small enough without a maximum */
    memset(out, 0, D * sizeof *out);
    for (int j = 0; j < SK; j++)
        sum += p[j] = exp(f->score(dot(b, h, i, j), b, h, i, j));
    *row_lse = log(sum);
    for (int j = 0; j < SK && sum > 0; j++)
        for (int c = 0; c < D; c++)
            out[c] += p[j] / sum * (double)fk_fp16_to_float(v[((b * SK + j) * HKV + h / 2) * D + c]);
}

static void reference_follows_the_formulas(void **state) {
    (void)state;
    static double got[B * H * SQ * D], got_lse[B * H * SQ];
    for (size_t n = 0; n < sizeof formulas / sizeof *formulas; n++) {
        const fk_problem p = parsed(formulas[n].spelling);
        const fk_args a = args_for(&p);
        if (fk_reference(&p, &a, FK_REFERENCE_F64, got, got_lse)) fail_msg("%s", fk_last_error());
        for (int row = 0; row < B * H * SQ; row++) {
            double want[D], want_lse;
            naive_row(&formulas[n], row / SQ / H, row / SQ % H, row % SQ, want, &want_lse);
            if (isinf(want_lse) ? got_lse[row] != want_lse : !(fabs(got_lse[row] - want_lse) < 1e-9))
                fail_msg("%s: lse[%d] is %.12g, not %.12g", formulas[n].spelling, row, got_lse[row], want_lse);
            for (int c = 0; c < D; c++)
                if (!(fabs(got[row * D + c] - want[c]) < 1e-9))
                    fail_msg("%s: o[%d][%d] is %.12g, not %.12g", formulas[n].spelling, row, c, got[row * D + c],
                             want[c]);
        }
    }
}

static void run_on_emulator(fk_context *context, const fk_problem *p, const char *name) {
    static double want[B * H * SQ * D], want_lse[B * H * SQ];
    const fk_args a = args_for(p);
    fk_kernel *kernel;
    memset(o, 0xff, sizeof o);
    if (fk_kernel_create(context, p, &kernel) || launch_once(context, kernel, &a) ||
        fk_reference(p, &a, FK_REFERENCE_F64, want, want_lse))
        fail_msg("%s: %s", name, fk_last_error());
    for (int row = 0; row < B * H * SQ; row++) {
        const uint16_t *got = o + ((row / SQ / H * SQ + row % SQ) * H + row / SQ % H) * D;
        if (isinf(want_lse[row]) ? (double)lse[row] != want_lse[row] : !(fabs((double)lse[row] - want_lse[row]) < 1e-4))
            fail_msg("%s: lse[%d] is %g, not %g", name, row, (double)lse[row], want_lse[row]);
        for (int c = 0; c < D; c++)
            if (!(fabs((double)fk_fp16_to_float(got[c]) - want[row * D + c]) < 3e-3))
                fail_msg("%s: o[%d][%d] is %g, not %g", name, row, c, (double)fk_fp16_to_float(got[c]),
                         want[row * D + c]);
    }
    fk_kernel_destroy(kernel);
}

static fk_context *open_emulator(void) {
    fk_context_options options = FK_CONTEXT_OPTIONS_INIT;
    fk_context *context;
    options.device = "emu";
    options.cache_mode = FK_CACHE_OFF;
    if (fk_context_create(&options, &context)) fail_msg("%s", fk_last_error());
    return context;
}

static void emulated_kernels_follow_the_reference(void **state) {
    (void)state;
    fk_context *context = open_emulator();
    for (size_t n = 0; n < sizeof formulas / sizeof *formulas; n++) {
        const fk_problem p = parsed(formulas[n].spelling);
        run_on_emulator(context, &p, formulas[n].spelling);
    }
    fk_context_destroy(context);
}

/* A problem filled in C; and one kernel for each problem, where only scores tell them apart. */
static void problems_are_filled_in_c(void **state) {
    (void)state;
    char spelling[FK_MAX_SPELLING];
    fk_problem p = FK_PROBLEM_INIT;
    fk_kernel *one, *other, *same;
    p.head_dim = D, p.gqa = 1;
    p.num_arrays = 1;
    p.array[0] = (fk_array_decl){"slope", FK_FLOAT32, 1, {FK_DIM_HEADS_Q}, 0};
    p.num_scores = 1;
    strcpy(p.score[0].expr, "s+0.1*tanh(s)-abs(q-k)*slope[h]");
    assert_int_equal(fk_problem_spell(&p, spelling, sizeof spelling), FK_OK);
    assert_string_equal(spelling, formulas[5].spelling);
    fk_context *context = open_emulator();
    run_on_emulator(context, &p, "filled in C");
    fk_problem linear = p;
    strcpy(linear.score[0].expr, "s - slope[h]");
    assert_int_equal(fk_kernel_create(context, &p, &one), FK_OK);
    assert_int_equal(fk_kernel_create(context, &linear, &other), FK_OK);
    assert_int_equal(fk_kernel_create(context, &p, &same), FK_OK);
    assert_ptr_equal(one, same);
    assert_ptr_not_equal(one, other);
    fk_kernel_destroy(one);
    fk_kernel_destroy(other);
    fk_kernel_destroy(same);
    fk_context_destroy(context);
}

/* ---- refusals ----------------------------------------------------------------------------------------- */

static void bad_arrays_are_refused(void **state) {
    (void)state;
    const fk_problem p = parsed("fwd fp16 d16 gqa relative(8)");
    const fk_args good = args_for(&p);
    static const struct {
        const char *what, *message;
    } cases[] = {
        {"null", "array[0] (table) is null"},
        {"misaligned", "array[0] (table) is at "},
        {"size 0", "array[0].size[1] (table) is 0; it must be 1 to 2147483647"},
        {"size large", "array[1].size[0] (bucket) is 2147483648; it must be 1 to 2147483647"},
        {"stride negative", "array[0].stride[0] (table) is -1; it must be 0 to 9223372036854775807"},
        {"last stride large", "array[0].stride[1] (table) is 536870912; it must be 0 to 536870911"},
        {"span", "array[0].stride[0] (table) is 1152921504606846976 for 4 entries; an array may span 2^60 elements"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        static double out[B * H * SQ * D];
        fk_args a = good;
        if (i == 0) a.array[0].data = NULL;
        if (i == 1) a.array[0].data = (const char *)table + 2;
        if (i == 2) a.array[0].size[1] = 0;
        if (i == 3) a.array[1].size[0] = (int64_t)1 << 31;
        if (i == 4) a.array[0].stride[0] = -1;
        if (i == 5) a.array[0].stride[1] = (int64_t)1 << 29;
        if (i == 6) a.array[0].stride[0] = (int64_t)1 << 60;
        assert_int_equal(fk_reference(&p, &a, FK_REFERENCE_F64, out, NULL), FK_BAD_ARGUMENT);
        if (!strstr(fk_last_error(), cases[i].message)) fail_msg("%s: %s", cases[i].what, fk_last_error());
    }
    fk_context *context = open_emulator();
    fk_kernel *kernel;
    fk_args a = good;
    a.lse = table; /* what is written may not be read */
    assert_int_equal(fk_kernel_create(context, &p, &kernel), FK_OK);
    assert_int_equal(fk_execute(kernel, &a, NULL, 0, NULL), FK_BAD_ARGUMENT);
    assert_non_null(strstr(fk_last_error(), "lse at 0x"));
    assert_non_null(strstr(fk_last_error(), "overlaps table"));
    fk_kernel_destroy(kernel);
    fk_context_destroy(context);
}

int main(void) {
    fill_all();
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(reference_follows_the_formulas),
        cmocka_unit_test(emulated_kernels_follow_the_reference),
        cmocka_unit_test(problems_are_filled_in_c),
        cmocka_unit_test(bad_arrays_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
