/* One fp32 problem, run on any device and compared with the references: O and lse, and for bwd dQ, dK and dV of them.
 */
#ifndef FK_TESTS_FP32_SAMPLE_H
#define FK_TESTS_FP32_SAMPLE_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "flashkiln.h"

#include <math.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

typedef struct fp32_sample {
    const char *spelling, *plan_for; /* null: the device itself */
    int64_t batch, num_heads_q, num_heads_kv, seqlen_q, seqlen_k;
    int64_t padding; /* floats behind each row of all heads: a multiple of 4 */
} fp32_sample;

enum { FP32_Q, FP32_K, FP32_V, FP32_O, FP32_DOUT, FP32_DQ, FP32_DK, FP32_DV, FP32_TENSORS };

typedef struct fp32_tensor {
    int64_t seqlen, heads, dim, stride[3], count; /* stride: batch, seqlen, head */
    float *host;
    void *device;
    double *exact, *eager;
} fp32_tensor;

typedef struct fp32_trial {
    const fp32_sample *s;
    fk_context *context;
    fp32_tensor t[FP32_TENSORS];
    fk_args args, host_args;
} fp32_trial;

#define FP32_MUST(call)                                                                                                \
    do {                                                                                                               \
        if ((call) != FK_OK) fail_msg("%s: %s", t->s->spelling, fk_last_error());                                      \
    } while (0)

static inline void fp32_point(fk_args *a, void *const data[FP32_TENSORS]) {
    a->q = data[FP32_Q], a->k = data[FP32_K], a->v = data[FP32_V], a->o = data[FP32_O];
    a->dout = data[FP32_DOUT], a->dq = data[FP32_DQ], a->dk = data[FP32_DK], a->dv = data[FP32_DV];
}

static inline void fp32_fill(fp32_tensor *x, uint32_t seed) {
    for (int64_t i = 0; i < x->count; i++) {
        float sum = 0;
        for (int j = 0; j < 4; j++) { /* four uniforms of 24 bits: nearly normal, and no sum of two bf16 */
            seed = seed * 1664525u + 1013904223u;
            sum += (float)(seed >> 8) / 16777216.0f - 0.5f;
        }
        x->host[i] = sum * 1.7320508f;
    }
}

static inline void fp32_upload(fp32_trial *t, int which) {
    const fp32_tensor *x = &t->t[which];
    FP32_MUST(fk_copy_to_device(t->context, x->device, x->host, (size_t)x->count * sizeof(float)));
}

static inline void fp32_make(fp32_trial *t, const fk_problem *p) {
    const fp32_sample *s = t->s;
    fk_args a = FK_ARGS_INIT;
    a.batch = s->batch, a.num_heads_q = s->num_heads_q, a.num_heads_kv = s->num_heads_kv;
    a.seqlen_q = s->seqlen_q, a.seqlen_k = s->seqlen_k;
    int64_t *const strides[FP32_TENSORS] = {a.q_stride,    a.k_stride,  a.v_stride,  a.o_stride,
                                            a.dout_stride, a.dq_stride, a.dk_stride, a.dv_stride};
    void *host[FP32_TENSORS], *device[FP32_TENSORS];
    for (int i = 0; i < FP32_TENSORS; i++) {
        fp32_tensor *x = &t->t[i];
        const bool keys = i == FP32_K || i == FP32_V || i == FP32_DK || i == FP32_DV;
        const bool values = i == FP32_V || i == FP32_O || i == FP32_DOUT || i == FP32_DV;
        x->seqlen = keys ? s->seqlen_k : s->seqlen_q;
        x->heads = keys ? s->num_heads_kv : s->num_heads_q;
        x->dim = values ? p->head_dim_v : p->head_dim;
        x->stride[2] = x->dim;
        x->stride[1] = x->heads * x->dim + s->padding;
        x->stride[0] = x->seqlen * x->stride[1];
        x->count = s->batch * x->stride[0];
        memcpy(strides[i], x->stride, sizeof x->stride);
        x->host = malloc((size_t)x->count * sizeof(float));
        x->exact = malloc((size_t)x->count * sizeof(double));
        x->eager = malloc((size_t)x->count * sizeof(double));
        assert_true(x->host && x->exact && x->eager);
        fp32_fill(x, (uint32_t)i + 1);
        FP32_MUST(fk_device_malloc(t->context, (size_t)x->count * sizeof(float), &x->device));
        fp32_upload(t, i);
        host[i] = x->host;
        device[i] = x->device;
    }
    t->args = t->host_args = a;
    fp32_point(&t->args, device);
    fp32_point(&t->host_args, host);
    void *lse;
    FP32_MUST(fk_device_malloc(t->context, (size_t)(a.batch * a.num_heads_q * a.seqlen_q) * sizeof(float), &lse));
    t->args.lse = lse;
}

static inline void fp32_execute(fp32_trial *t, const fk_problem *p) {
    fk_kernel *kernel;
    void *workspace = NULL;
    FP32_MUST(fk_kernel_create(t->context, p, &kernel));
    const size_t bytes = fk_kernel_workspace(kernel, &t->args);
    if (bytes) FP32_MUST(fk_device_malloc(t->context, bytes, &workspace));
    FP32_MUST(fk_execute(kernel, &t->args, workspace, bytes, NULL));
    FP32_MUST(fk_synchronize(t->context, NULL));
    fk_device_free(t->context, workspace);
    fk_kernel_destroy(kernel);
}

/* The largest error of a result, of float64's largest value; eager's likewise. */
static inline void fp32_check(fp32_trial *t, int which, const char *name) {
    const fp32_tensor *x = &t->t[which];
    double ours = 0, theirs = 0, largest = 0, ours_square = 0, theirs_square = 0, square = 0;
    int64_t n = 0;
    FP32_MUST(fk_copy_from_device(t->context, x->host, x->device, (size_t)x->count * sizeof(float)));
    for (int64_t b = 0; b < t->s->batch; b++)
        for (int64_t h = 0; h < x->heads; h++)
            for (int64_t row = 0; row < x->seqlen; row++)
                for (int64_t d = 0; d < x->dim; d++, n++) {
                    const double got = (double)x->host[b * x->stride[0] + row * x->stride[1] + h * x->stride[2] + d];
                    const double off = fabs(got - x->exact[n]), eager_off = fabs(x->eager[n] - x->exact[n]);
                    if (!isfinite(got)) fail_msg("%s: %s[%lld] is %g", t->s->spelling, name, (long long)n, got);
                    ours = fmax(ours, off), theirs = fmax(theirs, eager_off);
                    largest = fmax(largest, fabs(x->exact[n]));
                    ours_square += off * off, theirs_square += eager_off * eager_off;
                    square += x->exact[n] * x->exact[n];
                }
    print_message("%s for %s: %s: largest error %.2e (eager %.2e), norm %.2e (%.2e)\n", t->s->spelling,
                  t->s->plan_for ? t->s->plan_for : "this GPU", name, ours / largest, theirs / largest,
                  sqrt(ours_square / square), sqrt(theirs_square / square));
    /* One unit in the last place; two for gradients, since P comes from lse, which float32 rounds, and eager keeps P.
     */
    const double floor = which == FP32_O ? 0x1p-23 : 0x1p-22;
    assert_true(ours <= 2 * fmax(theirs, floor * largest));
    assert_true(ours_square <= 4 * theirs_square);
    assert_true(sqrt(ours_square / square) < 1e-6);
}

static inline void fp32_free(fp32_trial *t) {
    for (int i = 0; i < FP32_TENSORS; i++) {
        free(t->t[i].host), free(t->t[i].exact), free(t->t[i].eager);
        fk_device_free(t->context, t->t[i].device);
    }
    fk_device_free(t->context, t->args.lse);
}

static inline void fp32_run(fk_context *context, const fp32_sample *s) {
    fp32_trial trial = {.s = s, .context = context}, *t = &trial;
    fk_problem p, forward;
    FP32_MUST(fk_problem_parse(s->spelling, &p));
    FP32_MUST(fk_problem_canonical(&p, &p));
    forward = p;
    forward.op = FK_FORWARD, forward.deterministic = 0;
    fp32_make(t, &p);
    fp32_execute(t, &forward);
    fp32_tensor *x = t->t;
    FP32_MUST(fk_reference(&forward, &t->host_args, FK_REFERENCE_F64, x[FP32_O].exact, NULL));
    FP32_MUST(fk_reference(&forward, &t->host_args, FK_REFERENCE_EAGER, x[FP32_O].eager, NULL));
    fp32_check(t, FP32_O, "o");
    if (p.op == FK_BACKWARD) {
        static const char *const names[] = {"dq", "dk", "dv"};
        fp32_execute(t, &p);
        FP32_MUST(fk_reference_backward(&p, &t->host_args, FK_REFERENCE_F64, x[FP32_DQ].exact, x[FP32_DK].exact,
                                        x[FP32_DV].exact));
        FP32_MUST(fk_reference_backward(&p, &t->host_args, FK_REFERENCE_EAGER, x[FP32_DQ].eager, x[FP32_DK].eager,
                                        x[FP32_DV].eager));
        for (int i = 0; i < 3; i++)
            fp32_check(t, FP32_DQ + i, names[i]);
    }
    fp32_free(t);
}

/* Of a row that sees one key P is 1, however roughly its score is known: lse is of the same score. */
static inline void fp32_single_keys(fk_context *context) {
    const fp32_sample s = {"bwd fp32 d96 keep=\"k == q\"", NULL, 1, 2, 2, 70, 70, 0};
    fp32_trial trial = {.s = &s, .context = context}, *t = &trial;
    fk_problem p, forward;
    FP32_MUST(fk_problem_parse(s.spelling, &p));
    forward = p;
    forward.op = FK_FORWARD;
    fp32_make(t, &p);
    for (int i = FP32_Q; i <= FP32_K; i++) {
        for (int64_t j = 0; j < t->t[i].count; j++)
            t->t[i].host[j] *= 8; /* scores of some 60, of terms that cancel */
        fp32_upload(t, i);
    }
    fp32_execute(t, &forward);
    fp32_execute(t, &p);
    const fp32_tensor *dv = &t->t[FP32_DV], *dout = &t->t[FP32_DOUT];
    FP32_MUST(fk_copy_from_device(context, dv->host, dv->device, (size_t)dv->count * sizeof(float)));
    for (int64_t i = 0; i < dv->count; i++)
        if (fabs((double)dv->host[i] - (double)dout->host[i]) > 0x1p-23 * fabs((double)dout->host[i]))
            fail_msg("dv[%lld] is %.9g; its one query has dO %.9g", (long long)i, (double)dv->host[i],
                     (double)dout->host[i]);
    fp32_free(t);
}

/* Scores so large that what they lose in a float, 2^-8 of them, is larger than the exponents of p may be. */
static inline void fp32_large_scores(fk_context *context) {
    static const float scales[] = {1e3f, 1e4f, 1e6f};
    const fp32_sample s = {"fwd fp32 d64 causal", NULL, 1, 2, 2, 70, 200, 0};
    fp32_trial trial = {.s = &s, .context = context}, *t = &trial;
    fk_problem p;
    FP32_MUST(fk_problem_parse(s.spelling, &p));
    fp32_make(t, &p);
    fp32_tensor *o = &t->t[FP32_O];
    for (size_t n = 0; n < sizeof scales / sizeof *scales; n++) {
        t->args.softmax_scale = t->host_args.softmax_scale = scales[n];
        fp32_execute(t, &p);
        FP32_MUST(fk_reference(&p, &t->host_args, FK_REFERENCE_F64, o->exact, NULL));
        FP32_MUST(fk_copy_from_device(context, o->host, o->device, (size_t)o->count * sizeof(float)));
        for (int64_t b = 0, i = 0; b < s.batch; b++)
            for (int64_t h = 0; h < o->heads; h++)
                for (int64_t row = 0; row < o->seqlen; row++)
                    for (int64_t d = 0; d < o->dim; d++, i++) {
                        const float got = o->host[b * o->stride[0] + row * o->stride[1] + h * o->stride[2] + d];
                        if (!(fabs((double)got - o->exact[i]) < 1e-3))
                            fail_msg("scale %g: o of query %lld is %g, not %g", (double)scales[n], (long long)row,
                                     (double)got, o->exact[i]);
                    }
    }
    fp32_free(t);
}

/* Where the last keys, which come first, lie far below the others, lse is as exact as elsewhere. */
static inline void fp32_low_last_keys(fk_context *context) {
    const fp32_sample s = {"fwd fp32 d32", NULL, 1, 1, 1, 20, 600, 0};
    fp32_trial trial = {.s = &s, .context = context}, *t = &trial;
    fk_problem p;
    float lse[20];
    double sum = 0;
    FP32_MUST(fk_problem_parse(s.spelling, &p));
    fp32_make(t, &p);
    for (int64_t i = 0; i < t->t[FP32_Q].count; i++)
        t->t[FP32_Q].host[i] = 0.73f;
    for (int64_t i = 0; i < t->t[FP32_K].count; i++)
        t->t[FP32_K].host[i] = i / 32 == 100 ? 0.021f : -5.6f;
    for (int64_t n = 0; n < s.seqlen_k; n++)
        sum += exp(32 * (double)0.73f * (double)t->t[FP32_K].host[32 * n] / sqrt(32));
    fp32_upload(t, FP32_Q);
    fp32_upload(t, FP32_K);
    fp32_execute(t, &p);
    FP32_MUST(fk_copy_from_device(context, lse, t->args.lse, sizeof lse));
    for (int i = 0; i < 20; i++)
        if (fabs((double)lse[i] - log(sum)) > 0x1p-23) fail_msg("lse is %.9g, not %.9g", (double)lse[i], log(sum));
    fp32_free(t);
}

#endif
