/* The reference's gradients of declared arrays against central differences of its forward pass, of every kind of term:
 * broadcast, indices outside, several terms, sinks. */
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

enum { B = 2, HQ = 4, HKV = 2, SQ = 5, SK = 7, D = 8, NUM_Q = B * SQ * HQ * D, NUM_K = B * SK * HKV * D };
enum { NUM_ROWS = B * HQ * SQ, MAX_ELEMENTS = B * HQ * SQ * SK, ANY = 7 };

typedef struct fixture {
    fk_problem p;
    fk_args args;
    size_t num_arrays;
    fk_array_decl decl[FK_MAX_ARRAYS];
    int64_t size[FK_MAX_ARRAYS][FK_MAX_RANK];
    uint16_t q[NUM_Q], k[NUM_K], v[NUM_K], dout[NUM_Q];
    float dlse[NUM_ROWS], values[FK_MAX_ARRAYS][MAX_ELEMENTS];
    int32_t ints[FK_MAX_ARRAYS][MAX_ELEMENTS];
    uint16_t halves[FK_MAX_ARRAYS][MAX_ELEMENTS]; /* fp16 */
} fixture;

static double draw(uint32_t *state) { /* steps of 1/64 within -2 .. 2 */
    *state = *state * 1664525u + 1013904223u;
    return (double)((int)(*state >> 24) - 128) / 64;
}

static void fill(uint16_t *out, int count, uint32_t *state) {
    for (int i = 0; i < count; i++)
        out[i] = fk_fp16_from_float((float)draw(state));
}

/* `repeated`: dimension 0 has stride 0, in the array and in its gradient. */
static void prepare(fixture *f, const char *spelling, bool repeated) {
    static const int64_t extents[] = {ANY, B, HQ, SQ, SK};
    uint32_t state = 11;
    memset(f, 0, sizeof *f);
    if (fk_problem_parse(spelling, &f->p)) fail_msg("%s", fk_last_error());
    assert_int_equal(fk_problem_arrays(&f->p, f->decl, &f->num_arrays), FK_OK);
    fill(f->q, NUM_Q, &state), fill(f->k, NUM_K, &state), fill(f->v, NUM_K, &state), fill(f->dout, NUM_Q, &state);
    for (int i = 0; i < NUM_ROWS; i++)
        f->dlse[i] = (float)draw(&state);
    fk_args a = FK_ARGS_INIT;
    a.batch = B, a.num_heads_q = HQ, a.num_heads_kv = HKV, a.seqlen_q = SQ, a.seqlen_k = SK;
    a.q = f->q, a.k = f->k, a.v = f->v, a.dout = f->dout, a.dlse = f->dlse;
    for (size_t i = 0; i < f->num_arrays; i++) {
        int64_t stride = 1;
        for (int j = 0; j < MAX_ELEMENTS; j++) {
            f->values[i][j] = (float)draw(&state);
            f->ints[i][j] = (int32_t)(draw(&state) * 4);
            f->halves[i][j] = fk_fp16_from_float(f->values[i][j]);
        }
        a.array[i].data = f->decl[i].type == FK_FLOAT32   ? (const void *)f->values[i]
                          : f->decl[i].type == FK_FLOAT16 ? (const void *)f->halves[i]
                                                          : f->ints[i];
        for (int d = f->decl[i].rank - 1; d >= 0; d--) {
            f->size[i][d] = a.array[i].size[d] = extents[f->decl[i].dim[d]];
            const bool summed = repeated && d == 0;
            a.array[i].stride[d] = a.array_grad[i].stride[d] = summed ? 0 : stride;
            if (!summed) stride *= f->size[i][d];
        }
        assert_true(stride <= MAX_ELEMENTS);
    }
    assert_int_equal(fk_args_layout(&f->p, FK_BSHD, &a), FK_OK);
    f->args = a;
}

/* sum(dout * o) + sum(dlse * lse): gradients are its derivatives. */
static double loss(const fixture *f) {
    static double o[NUM_Q], lse[NUM_ROWS];
    double total = 0;
    assert_int_equal(fk_reference(&f->p, &f->args, FK_REFERENCE_F64, o, lse), FK_OK);
    for (int b = 0; b < B; b++)
        for (int h = 0; h < HQ; h++)
            for (int s = 0; s < SQ; s++)
                for (int c = 0; c < D; c++)
                    total += o[((b * HQ + h) * SQ + s) * D + c] *
                             (double)fk_fp16_to_float(f->dout[((b * SQ + s) * HQ + h) * D + c]);
    for (int i = 0; i < NUM_ROWS; i++)
        if (isfinite(lse[i])) total += (double)f->dlse[i] * lse[i];
    return total;
}

static void set(fixture *f, size_t array, int64_t element, float value) {
    f->values[array][element] = value;
    f->halves[array][element] = fk_fp16_from_float(value); /* no bits are lost: fractions of 2^-9 below 4 */
}

static void compare_arrays(fixture *f, const char *spelling) {
    const float step = 0x1p-9f;
    static double got[FK_MAX_ARRAYS][MAX_ELEMENTS], eager[FK_MAX_ARRAYS][MAX_ELEMENTS];
    double *grad[FK_MAX_ARRAYS] = {NULL}, *rounded[FK_MAX_ARRAYS] = {NULL};
    for (size_t i = 0; i < f->num_arrays; i++)
        grad[i] = got[i], rounded[i] = eager[i];
    if (fk_reference_arrays(&f->p, &f->args, FK_REFERENCE_F64, grad)) fail_msg("%s: %s", spelling, fk_last_error());
    assert_int_equal(fk_reference_arrays(&f->p, &f->args, FK_REFERENCE_EAGER, rounded), FK_OK);
    for (size_t i = 0; i < f->num_arrays; i++) {
        int64_t count = 1;
        for (int d = 0; d < f->decl[i].rank; d++)
            if (f->args.array[i].stride[d]) count *= f->size[i][d];
        for (int64_t j = 0; j < count && (f->p.grad >> i & 1); j++) {
            const float kept = f->values[i][j];
            set(f, i, j, kept + step);
            const double above = loss(f);
            set(f, i, j, kept - step);
            const double below = loss(f);
            set(f, i, j, kept);
            const double want = (above - below) / (2 * (double)step);
            if (!(fabs(got[i][j] - want) <= 2e-4 * (1 + fabs(want))))
                fail_msg("%s: %s[%d] is %.9g, not %.9g", spelling, f->decl[i].name, (int)j, got[i][j], want);
            if (!(fabs(eager[i][j] - want) <= 0.03 * (1 + fabs(want))))
                fail_msg("%s: eager's %s[%d] is %.9g, not %.9g", spelling, f->decl[i].name, (int)j, eager[i][j], want);
        }
    }
}

/* dq goes through the same chain of terms. */
static void compare_dq(fixture *f, const char *spelling) {
    static double dq[NUM_Q];
    const float step = 0x1p-6f;
    assert_int_equal(fk_reference_backward(&f->p, &f->args, FK_REFERENCE_F64, dq, NULL, NULL), FK_OK);
    for (int i = 0; i < NUM_Q; i += 13) {
        const int b = i / (SQ * HQ * D), s = i / (HQ * D) % SQ, h = i / D % HQ, c = i % D;
        const uint16_t kept = f->q[i];
        f->q[i] = fk_fp16_from_float(fk_fp16_to_float(kept) + step);
        const double above = loss(f);
        f->q[i] = fk_fp16_from_float(fk_fp16_to_float(kept) - step);
        const double below = loss(f);
        f->q[i] = kept;
        const double want = (above - below) / (2 * (double)step), have = dq[((b * HQ + h) * SQ + s) * D + c];
        if (!(fabs(have - want) <= 2e-3 * (1 + fabs(want))))
            fail_msg("%s: dq[%d] is %.9g, not %.9g", spelling, i, have, want);
    }
}

static void is_the_derivative(void **state) {
    (void)state;
    static const char *const spellings[] = {
        "bwd fp16 d8 gqa array=slope:float[h] score=\"s + 0.1 * tanh(s) - abs(q - k) * slope[h]\" grad=slope",
        "bwd fp16 d8 gqa alibi causal grad=slope",
        "bwd fp16 d8 gqa bias grad=bias",
        "bwd fp16 d8 gqa array=bias:fp16[b][h][q][k] bias grad=bias",
        "bwd fp16 d8 gqa bias grad=bias causal softcap(3)",
        "bwd fp16 d8 gqa relative(3) grad=table",
        "bwd fp16 d8 gqa sink grad=sink keep=\"q != 1 && k <= q\"",
        "bwd fp16 d8 gqa array=w:float[h][] score=\"q < k ? s : s - 0.25 * w[h][abs(q - k) - 3]\" grad=w",
        "bwd fp16 d8 gqa array=temp:float[b][h] score=\"s * temp[b][h]\" softcap(5) bias grad=temp grad=bias",
        "bwd fp16 d8 gqa array=u:float[q] array=v:float[k] score=\"s + u[q] * v[k]\" sink grad=u grad=v grad=sink",
        "bwd fp16 d8 gqa array=u:float[q] score=\"s + u[q] * u[q + 2]\" grad=u",
    };
    static fixture f;
    for (size_t i = 0; i < sizeof spellings / sizeof *spellings; i++)
        for (int repeated = 0; repeated < 2; repeated++) {
            prepare(&f, spellings[i], repeated);
            compare_arrays(&f, spellings[i]);
            compare_dq(&f, spellings[i]);
        }
}

static void refuses(void **state) {
    (void)state;
    static fixture f;
    double slope[HQ], *grad[FK_MAX_ARRAYS] = {slope};
    prepare(&f, "bwd fp16 d8 gqa alibi", false);
    assert_int_equal(fk_reference_arrays(&f.p, &f.args, FK_REFERENCE_F64, grad), FK_BAD_ARGUMENT);
    assert_non_null(strstr(fk_last_error(), "grad is 0"));
    prepare(&f, "bwd fp16 d8 gqa alibi grad=slope", false);
    assert_int_equal(fk_reference_arrays(&f.p, &f.args, FK_REFERENCE_F64, NULL), FK_BAD_ARGUMENT);
    assert_int_equal(fk_reference_arrays(NULL, &f.args, FK_REFERENCE_F64, grad), FK_BAD_ARGUMENT);
    f.args.array_grad[0].stride[0] = -1;
    assert_int_equal(fk_reference_arrays(&f.p, &f.args, FK_REFERENCE_F64, grad), FK_BAD_ARGUMENT);
    assert_non_null(strstr(fk_last_error(), "array_grad[0].stride[0] (slope) is -1"));
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(is_the_derivative), cmocka_unit_test(refuses)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
