/* The reference against a computation that shares nothing with it: full score matrices, predicates in C. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "flashkiln.h"
#include "runtime/emulator/half.h"

#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { B = 2, HQ = 4, HKV = 2, SQ = 37, SK = 53, D = 16, DV = 24 };

static uint16_t q[B * SQ * HQ * D], k[B * SK * HKV * D], v[B * SK * HKV * DV];
static double o[B * HQ * SQ * DV], lse[B * HQ * SQ];

/* Values in -2 .. 2 in steps of 1/64, exact in both dtypes. */
static float value(uint32_t *state) {
    *state = *state * 1664525u + 1013904223u;
    return (float)((int)(*state >> 24) - 128) / 64;
}

static void fill(uint16_t *data, size_t n, bool bf16, uint32_t seed) {
    for (size_t i = 0; i < n; i++) {
        const float x = value(&seed);
        data[i] = bf16 ? fk_bf16_from_float(x) : fk_fp16_from_float(x);
    }
}

static double get(const uint16_t *data, int64_t b, int64_t s, int64_t h, int64_t i, int64_t len, int64_t heads,
                  int64_t dim, bool bf16) {
    const uint16_t bits = data[((b * len + s) * heads + h) * dim + i];
    return bf16 ? fk_bf16_to_float(bits) : fk_fp16_to_float(bits);
}

typedef bool (*predicate)(int qi, int ki, int diag);
static bool all(int qi, int ki, int diag) {
    return (void)qi, (void)ki, (void)diag, true;
}
static bool causal(int qi, int ki, int diag) {
    return ki <= qi + diag;
}
static bool window(int qi, int ki, int diag) {
    return ki >= qi + diag - 5 && ki <= qi + diag + 2;
}
static bool dilated(int qi, int ki, int diag) {
    return (void)diag, ki <= qi && (qi - ki) % 4 == 0;
}
static bool hidden(int qi, int ki, int diag) {
    return (void)diag, qi >= 30 && ki > 3;
}

static fk_args make_args(const fk_problem *p) {
    fk_args a = FK_ARGS_INIT;
    a.batch = B, a.num_heads_q = HQ, a.num_heads_kv = HKV, a.seqlen_q = SQ, a.seqlen_k = SK;
    a.q = q, a.k = k, a.v = v;
    assert_int_equal(fk_args_layout(p, FK_BSHD, &a), FK_OK);
    return a;
}

/* Largest difference to the naive result; infinities must agree. */
static void compare(const char *spelling, predicate keep, bool bf16, double scale, double tolerance) {
    const bool top_left = strstr(spelling, "top-left") != NULL;
    for (int b = 0; b < B; b++)
        for (int h = 0; h < HQ; h++)
            for (int i = 0; i < SQ; i++) {
                double s[SK], sum = 0, want[DV] = {0};
                const size_t row = (size_t)((b * HQ + h) * SQ + i);
                for (int j = 0; j < SK; j++) {
                    s[j] = 0;
                    for (int c = 0; c < D; c++)
                        s[j] += get(q, b, i, h, c, SQ, HQ, D, bf16) * get(k, b, j, h / 2, c, SK, HKV, D, bf16);
                    s[j] =
                        keep(i, j, top_left ? 0 : SK - SQ) ? exp(s[j] * scale) : 0; /* small enough without a maximum */
                    sum += s[j];
                }
                for (int j = 0; j < SK; j++)
                    for (int c = 0; c < DV && sum > 0; c++)
                        want[c] += s[j] / sum * get(v, b, j, h / 2, c, SK, HKV, DV, bf16);
                const double want_lse = sum > 0 ? log(sum) : -INFINITY;
                if (!(lse[row] == want_lse || fabs(lse[row] - want_lse) <= tolerance))
                    fail_msg("%s: lse[%d][%d][%d] is %.17g, not %.17g", spelling, b, h, i, lse[row], want_lse);
                for (int c = 0; c < DV; c++)
                    if (!(fabs(o[row * DV + (size_t)c] - want[c]) <= tolerance))
                        fail_msg("%s: o[%d][%d][%d][%d] is %.17g, not %.17g", spelling, b, h, i, c,
                                 o[row * DV + (size_t)c], want[c]);
            }
}

static void agrees(void **state) {
    (void)state;
    static const struct {
        const char *spelling;
        predicate keep;
    } cases[] = {
        {"fwd fp16 d16 dv24 gqa", all},
        {"fwd bf16 d16 dv24 gqa", all},
        {"fwd fp16 d16 dv24 gqa causal", causal},
        {"fwd bf16 d16 dv24 gqa causal top-left", causal},
        {"fwd fp16 d16 dv24 gqa window(5,2)", window},
        {"fwd fp16 d16 dv24 gqa window(5,2) top-left", window},
        {"fwd fp16 d16 dv24 gqa keep=\"k <= q && (q - k) % 4 == 0\"", dilated},
        {"fwd fp16 d16 dv24 gqa keep=\"q >= 30 && k > 3\"", hidden}, /* rows that see nothing */
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        fk_problem p;
        const bool bf16 = strstr(cases[i].spelling, "bf16") != NULL;
        if (fk_problem_parse(cases[i].spelling, &p)) fail_msg("%s: %s", cases[i].spelling, fk_last_error());
        fill(q, sizeof q / 2, bf16, 1), fill(k, sizeof k / 2, bf16, 2), fill(v, sizeof v / 2, bf16, 3);
        fk_args a = make_args(&p);
        assert_int_equal(fk_reference(&p, &a, FK_REFERENCE_F64, o, lse), FK_OK);
        compare(cases[i].spelling, cases[i].keep, bf16, 0.25, 1e-13);
        a.softmax_scale = 0.0625f;
        assert_int_equal(fk_reference(&p, &a, FK_REFERENCE_F64, o, lse), FK_OK);
        compare(cases[i].spelling, cases[i].keep, bf16, 0.0625, 1e-13);
        /* Eager is near, and not equal: P has 11 or 8 bits. */
        assert_int_equal(fk_reference(&p, &a, FK_REFERENCE_EAGER, o, lse), FK_OK);
        compare(cases[i].spelling, cases[i].keep, bf16, 0.0625, bf16 ? 2e-2 : 3e-3);
    }
}

/* One query, two keys: every rounding of EAGER by hand. s = 1/3 of 1, so exp and sum are known. */
static void eager_rounds_where_it_says(void **state) {
    (void)state;
    fk_problem p;
    fk_args a = FK_ARGS_INIT;
    static uint16_t one_q[8], two_k[16], two_v[16];
    double out[8], out_lse;
    assert_int_equal(fk_problem_parse("fwd bf16 d8", &p), FK_OK);
    one_q[0] = fk_bf16_from_float(1);
    two_k[0] = fk_bf16_from_float(1), two_k[8] = fk_bf16_from_float(0);
    two_v[0] = fk_bf16_from_float(1), two_v[8] = fk_bf16_from_float(3);
    a.batch = a.num_heads_q = a.num_heads_kv = a.seqlen_q = 1, a.seqlen_k = 2;
    a.q = one_q, a.k = two_k, a.v = two_v, a.softmax_scale = 1.0f / 3;
    assert_int_equal(fk_args_layout(&p, FK_BSHD, &a), FK_OK);
    assert_int_equal(fk_reference(&p, &a, FK_REFERENCE_EAGER, out, &out_lse), FK_OK);
    const float s = 0.333984375f; /* 1/3 in bf16 */
    const float sum = 1 + expf(-s);
    const float p0 = fk_bf16_to_float(fk_bf16_from_float(1 / sum)),
                p1 = fk_bf16_to_float(fk_bf16_from_float(expf(-s) / sum));
    const float want = fk_bf16_to_float(fk_bf16_from_float(p0 + 3 * p1));
    assert_true(out[0] == want);
    assert_true(out_lse == s + logf(sum));
    assert_true(out[1] == 0);
}

static void strides_may_be_anything_but_negative(void **state) {
    (void)state;
    fk_problem p;
    double direct[B * HQ * SQ * DV];
    static uint16_t spread[B * SK * HKV * D * 3 + 1];
    assert_int_equal(fk_problem_parse("fwd fp16 d16 dv24 gqa causal", &p), FK_OK);
    fill(q, sizeof q / 2, false, 1), fill(k, sizeof k / 2, false, 2), fill(v, sizeof v / 2, false, 3);
    fk_args a = make_args(&p);
    assert_int_equal(fk_reference(&p, &a, FK_REFERENCE_F64, direct, NULL), FK_OK);
    for (int64_t row = 0; row < B * SK * HKV; row++) /* rows three times as far apart, and at an odd address */
        memcpy(spread + 1 + row * 3 * D, k + row * D, D * 2);
    a.k = spread + 1;
    for (int i = 0; i < 3; i++)
        a.k_stride[i] *= 3;
    assert_int_equal(fk_reference(&p, &a, FK_REFERENCE_F64, o, NULL), FK_OK);
    assert_memory_equal(o, direct, sizeof o);
    a.k_stride[1] = -16;
    assert_int_equal(fk_reference(&p, &a, FK_REFERENCE_F64, o, NULL), FK_BAD_ARGUMENT);
    assert_non_null(strstr(fk_last_error(), "k_stride[1]"));
}

static void refuses(void **state) {
    (void)state;
    fk_problem p;
    assert_int_equal(fk_problem_parse("fwd fp16 d16 dv24 gqa", &p), FK_OK);
    fk_args a = make_args(&p);
    assert_int_equal(fk_reference(NULL, &a, FK_REFERENCE_F64, o, lse), FK_BAD_ARGUMENT);
    assert_int_equal(fk_reference(&p, NULL, FK_REFERENCE_F64, o, lse), FK_BAD_ARGUMENT);
    assert_int_equal(fk_reference(&p, &a, (fk_reference_kind)9, o, lse), FK_BAD_ARGUMENT);
    assert_non_null(strstr(fk_last_error(), "kind is 9"));
    a.seqlen_k = 0;
    assert_int_equal(fk_reference(&p, &a, FK_REFERENCE_F64, o, lse), FK_BAD_ARGUMENT);
    assert_non_null(strstr(fk_last_error(), "seqlen_k is 0"));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(agrees),
        cmocka_unit_test(eager_rounds_where_it_says),
        cmocka_unit_test(strides_may_be_anything_but_negative),
        cmocka_unit_test(refuses),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
