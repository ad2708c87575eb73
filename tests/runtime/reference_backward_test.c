/* The reference's gradients against central differences of a forward pass in double that shares nothing with it. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "flashkiln.h"
#include "runtime/emulator/half.h"

#include <math.h>
#include <stdbool.h>
#include <string.h>

enum {
    HQ = 4,
    HKV = 2,
    SQ = 5,
    SK = 7,
    D = 8,
    DV = 16,
    NUM_Q = SQ * HQ * D,
    NUM_K = SK * HKV * D,
    NUM_V = SK * HKV * DV
};
enum { NUM_O = SQ * HQ * DV, NUM_ROWS = HQ * SQ };

typedef struct inputs {
    double q[NUM_Q], k[NUM_K], v[NUM_V], dout[NUM_O];
    float dlse[NUM_ROWS];
} inputs;

static uint16_t halves[3][NUM_O + NUM_V], dout_halves[NUM_O];

static double draw(uint32_t *state) { /* steps of 1/64 within -2 .. 2: exact in both dtypes */
    *state = *state * 1664525u + 1013904223u;
    return (double)((int)(*state >> 24) - 128) / 64;
}

static inputs draw_inputs(bool bf16) {
    inputs in;
    uint32_t state = 5;
    double *const values[] = {in.q, in.k, in.v, in.dout};
    uint16_t *const bits[] = {halves[0], halves[1], halves[2], dout_halves};
    const int counts[] = {NUM_Q, NUM_K, NUM_V, NUM_O};
    for (int t = 0; t < 4; t++)
        for (int i = 0; i < counts[t]; i++) {
            values[t][i] = draw(&state);
            bits[t][i] = bf16 ? fk_bf16_from_float((float)values[t][i]) : fk_fp16_from_float((float)values[t][i]);
        }
    for (int i = 0; i < NUM_ROWS; i++)
        in.dlse[i] = (float)draw(&state);
    return in;
}

static bool sees(int qi, int ki, bool causal) {
    return !causal || ki <= qi + SK - SQ - 2; /* the first row sees one key */
}

/* sum(dout * o) + sum(dlse * lse): the gradients are its derivatives. Layout [seqlen, head, dim]. */
static double loss(const inputs *in, bool causal, bool with_dlse, double scale) {
    double total = 0;
    for (int h = 0; h < HQ; h++)
        for (int i = 0; i < SQ; i++) {
            const int kv = h / (HQ / HKV);
            double p[SK], sum = 0;
            for (int j = 0; j < SK; j++) {
                double s = 0;
                for (int c = 0; c < D; c++)
                    s += in->q[(i * HQ + h) * D + c] * in->k[(j * HKV + kv) * D + c];
                p[j] = sees(i, j, causal) ? exp(scale * s) : 0;
                sum += p[j];
            }
            for (int j = 0; j < SK; j++)
                for (int c = 0; c < DV; c++)
                    total += p[j] / sum * in->v[(j * HKV + kv) * DV + c] * in->dout[(i * HQ + h) * DV + c];
            if (with_dlse) total += (double)in->dlse[h * SQ + i] * log(sum);
        }
    return total;
}

/* `got` is [head, seqlen, dim]; `x` the input, [seqlen, head, dim]. */
static void compare(const char *name, const inputs *in, double *x, int heads, int seqlen, int dim, const double *got,
                    bool causal, bool with_dlse, double scale, double tolerance) {
    const double step = 1e-5;
    for (int h = 0; h < heads; h++)
        for (int s = 0; s < seqlen; s++)
            for (int c = 0; c < dim; c++) {
                double *at = &x[(s * heads + h) * dim + c];
                const double kept = *at;
                *at = kept + step;
                const double above = loss(in, causal, with_dlse, scale);
                *at = kept - step;
                const double below = loss(in, causal, with_dlse, scale);
                *at = kept;
                const double want = (above - below) / (2 * step), have = got[(h * seqlen + s) * dim + c];
                if (!(fabs(have - want) <= tolerance))
                    fail_msg("%s[%d][%d][%d] is %.12g, not %.12g", name, h, s, c, have, want);
            }
}

static fk_args make_args(const fk_problem *p, const inputs *in, bool with_dlse) {
    fk_args a = FK_ARGS_INIT;
    a.batch = 1, a.num_heads_q = HQ, a.num_heads_kv = HKV, a.seqlen_q = SQ, a.seqlen_k = SK;
    a.q = halves[0], a.k = halves[1], a.v = halves[2], a.dout = dout_halves, a.dlse = with_dlse ? in->dlse : NULL;
    assert_int_equal(fk_args_layout(p, FK_BSHD, &a), FK_OK);
    return a;
}

static void is_the_derivative(void **state) {
    (void)state;
    static const char *const spellings[] = {"bwd fp16 d8 dv16 gqa", "bwd bf16 d8 dv16 gqa",
                                            "bwd fp16 d8 dv16 gqa keep=\"k <= q + diag - 2\""};
    double dq[NUM_Q], dk[NUM_K], dv[NUM_V];
    for (int n = 0; n < 12; n++) {
        const char *spelling = spellings[n % 3];
        const bool causal = n % 3 == 2, with_dlse = n / 3 % 2, eager = n >= 6, bf16 = n % 3 == 1;
        inputs in = draw_inputs(bf16);
        fk_problem p;
        assert_int_equal(fk_problem_parse(spelling, &p), FK_OK);
        fk_args a = make_args(&p, &in, with_dlse);
        a.softmax_scale = n % 2 ? 0.25f : 0;
        const double scale = n % 2 ? 0.25 : 1 / sqrt(D), tolerance = !eager ? 1e-7 : bf16 ? 0.3 : 0.04;
        assert_int_equal(fk_reference_backward(&p, &a, eager ? FK_REFERENCE_EAGER : FK_REFERENCE_F64, dq, dk, dv),
                         FK_OK);
        compare("dq", &in, in.q, HQ, SQ, D, dq, causal, with_dlse, scale, tolerance);
        compare("dk", &in, in.k, HKV, SK, D, dk, causal, with_dlse, scale, tolerance);
        compare("dv", &in, in.v, HKV, SK, DV, dv, causal, with_dlse, scale, tolerance);
    }
}

/* With an o that is not softmax(S) V, delta is still rowsum(dout * o): a row's dq moves by the difference. */
static void takes_o_if_given(void **state) {
    (void)state;
    static uint16_t zeros[NUM_O];
    double dq[NUM_Q], with_zeros[NUM_Q];
    const inputs in = draw_inputs(false);
    fk_problem p;
    assert_int_equal(fk_problem_parse("bwd fp16 d8 dv16 gqa", &p), FK_OK);
    fk_args a = make_args(&p, &in, true);
    assert_int_equal(fk_reference_backward(&p, &a, FK_REFERENCE_F64, dq, NULL, NULL), FK_OK);
    a.o = zeros; /* delta = -dlse */
    assert_int_equal(fk_reference_backward(&p, &a, FK_REFERENCE_F64, with_zeros, NULL, NULL), FK_OK);
    assert_true(fabs(dq[0] - with_zeros[0]) > 1e-3);
    assert_int_equal(fk_reference_backward(&p, &a, FK_REFERENCE_EAGER, with_zeros, NULL, NULL), FK_OK);
    assert_true(fabs(dq[0] - with_zeros[0]) < 1e-2); /* an eager framework never sees o again */
}

static void rows_without_keys_have_no_gradient(void **state) {
    (void)state;
    double dq[NUM_Q], dk[NUM_K];
    const inputs in = draw_inputs(false);
    fk_problem p;
    assert_int_equal(fk_problem_parse("bwd fp16 d8 dv16 gqa keep=\"q != 2 && k != 3\"", &p), FK_OK);
    const fk_args a = make_args(&p, &in, true);
    assert_int_equal(fk_reference_backward(&p, &a, FK_REFERENCE_F64, dq, dk, NULL), FK_OK);
    for (int h = 0; h < HQ; h++)
        for (int c = 0; c < D; c++) {
            assert_true(dq[(h * SQ + 2) * D + c] == 0);
            assert_true(h >= HKV || dk[(h * SK + 3) * D + c] == 0);
        }
}

static void refuses(void **state) {
    (void)state;
    double dq[NUM_Q];
    const inputs in = draw_inputs(false);
    fk_problem p;
    assert_int_equal(fk_problem_parse("bwd fp16 d8 dv16 gqa", &p), FK_OK);
    fk_args a = make_args(&p, &in, false);
    assert_int_equal(fk_reference_backward(NULL, &a, FK_REFERENCE_F64, dq, NULL, NULL), FK_BAD_ARGUMENT);
    assert_int_equal(fk_reference_backward(&p, NULL, FK_REFERENCE_F64, dq, NULL, NULL), FK_BAD_ARGUMENT);
    assert_int_equal(fk_reference_backward(&p, &a, (fk_reference_kind)3, dq, NULL, NULL), FK_BAD_ARGUMENT);
    assert_non_null(strstr(fk_last_error(), "kind is 3"));
    a.dout = NULL;
    assert_int_equal(fk_reference_backward(&p, &a, FK_REFERENCE_F64, dq, NULL, NULL), FK_BAD_ARGUMENT);
    assert_string_equal(fk_last_error(), "dout is null");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(is_the_derivative),
        cmocka_unit_test(takes_o_if_given),
        cmocka_unit_test(rows_without_keys_have_no_gradient),
        cmocka_unit_test(refuses),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
