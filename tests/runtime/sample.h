/* One problem with inputs, run on any device and compared with the reference: error against float64 is at most twice
 * eager's. */
#ifndef FK_TESTS_SAMPLE_H
#define FK_TESTS_SAMPLE_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "flashkiln.h"
#include "gen/problem.h"
#include "launch.h"
#include "runtime/emulator/half.h"

#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct sample {
    const char *spelling, *plan_for; /* null: the device itself */
    int64_t batch, num_heads_q, num_heads_kv, seqlen_q, seqlen_k;
    fk_layout layout;
    int64_t row_stride; /* of all four tensors on the device; 0: contiguous */
} sample;

/* q, k, v, o: contiguous on the host, in `args` on the device. */
typedef struct sample_tensors {
    fk_problem p;
    fk_args args, host;
    uint16_t *data[4];
    float *lse;
    size_t elements[4], rows_q;
} sample_tensors;

static inline void sample_fill(uint16_t *data, size_t elements, bool bf16, uint32_t seed) {
    for (size_t i = 0; i < elements; i++) {
        float x = 0;
        for (int j = 0; j < 4; j++) { /* four uniforms: nearly normal */
            seed = seed * 1664525u + 1013904223u;
            x += (float)(seed >> 8) / 16777216.0f - 0.5f;
        }
        data[i] = bf16 ? fk_bf16_from_float(x * 1.7f) : fk_fp16_from_float(x * 1.7f);
    }
}

/* Copies rows between a contiguous host tensor and one whose rows are `stride` elements apart. */
static inline void sample_copy(fk_context *context, char *device, char *host, size_t rows, size_t row_bytes,
                               size_t stride_bytes, bool to_device) {
    const size_t n = stride_bytes == row_bytes ? 1 : rows, bytes = rows * row_bytes / n;
    for (size_t i = 0; i < n; i++) {
        char *d = device + i * stride_bytes, *h = host + i * row_bytes;
        if (to_device ? fk_copy_to_device(context, d, h, bytes) : fk_copy_from_device(context, h, d, bytes))
            fail_msg("%s", fk_last_error());
    }
}

/* False: the device has too little memory. */
static inline bool sample_make(fk_context *context, const sample *s, sample_tensors *t) {
    fk_args a = FK_ARGS_INIT;
    memset(t, 0, sizeof *t);
    if (fk_problem_parse(s->spelling, &t->p) || fk_problem_canonical(&t->p, &t->p)) fail_msg("%s", fk_last_error());
    const size_t d = (size_t)t->p.head_dim, dv = (size_t)t->p.head_dim_v;
    a.batch = s->batch, a.num_heads_q = s->num_heads_q, a.num_heads_kv = s->num_heads_kv;
    a.seqlen_q = s->seqlen_q, a.seqlen_k = s->seqlen_k;
    const size_t rows_q = (size_t)(a.batch * a.num_heads_q * a.seqlen_q);
    const size_t rows_k = (size_t)(a.batch * a.num_heads_kv * a.seqlen_k);
    const size_t rows[4] = {rows_q, rows_k, rows_k, rows_q}, dim[4] = {d, d, dv, dv};
    t->rows_q = rows_q;
    assert_int_equal(fk_args_layout(&t->p, s->layout, &a), FK_OK);
    t->host = t->args = a;
    void *device[5] = {NULL};
    for (uint32_t i = 0; i < 4; i++) {
        const size_t stride = s->row_stride ? (size_t)s->row_stride : dim[i];
        t->elements[i] = rows[i] * dim[i];
        t->data[i] = malloc(t->elements[i] * 2);
        assert_non_null(t->data[i]);
        sample_fill(t->data[i], t->elements[i], t->p.dtype == FK_BF16, i + 1);
        fk_status status = fk_device_malloc(context, rows[i] * stride * 2, &device[i]);
        if (status == FK_NO_MEMORY) return false;
        if (status) fail_msg("%s", fk_last_error());
        sample_copy(context, device[i], (char *)t->data[i], rows[i], dim[i] * 2, stride * 2, i < 3);
    }
    t->lse = malloc(rows_q * sizeof(float));
    assert_non_null(t->lse);
    assert_int_equal(fk_device_malloc(context, rows_q * sizeof(float), &device[4]), FK_OK);
    t->args.q = device[0], t->args.k = device[1], t->args.v = device[2], t->args.o = device[3], t->args.lse = device[4];
    t->host.q = t->data[0], t->host.k = t->data[1], t->host.v = t->data[2];
    if (s->row_stride) { /* one batch, one head: rows are all there is */
        int64_t *strides[4] = {t->args.q_stride, t->args.k_stride, t->args.v_stride, t->args.o_stride};
        for (int i = 0; i < 4; i++)
            strides[i][1] = s->row_stride;
    }
    return true;
}

static inline void sample_free(fk_context *context, sample_tensors *t) {
    const void *device[5] = {t->args.q, t->args.k, t->args.v, t->args.o, t->args.lse};
    for (int i = 0; i < 5; i++) {
        fk_device_free(context, (void *)(uintptr_t)device[i]);
        free(i < 4 ? (void *)t->data[i] : (void *)t->lse);
    }
}

static inline void sample_fetch(fk_context *context, const sample *s, sample_tensors *t) {
    const size_t dv = (size_t)t->p.head_dim_v, stride = s->row_stride ? (size_t)s->row_stride : dv;
    if (fk_synchronize(context, NULL)) fail_msg("%s: %s", s->spelling, fk_last_error());
    sample_copy(context, t->args.o, (char *)t->data[3], t->rows_q, dv * 2, stride * 2, false);
    assert_int_equal(fk_copy_from_device(context, t->lse, t->args.lse, t->rows_q * sizeof(float)), FK_OK);
}

/* Of lse: `fast` of bf16 sums rounded weights in the first tile. */
static inline double sample_lse_limit(const fk_problem *p) {
    return p->fast ? 0x1p-8 : 1e-3;
}

/* Makes q what `fast` of bf16 multiplies, and the scale what is left of it then. */
static inline void sample_prescale(sample_tensors *t) {
    if (!fk_prescales_queries(&t->p)) return; /* the word changes nothing */
    const float factor = (float)(1.4426950408889634 / sqrt((double)t->p.head_dim));
    for (size_t i = 0; i < t->elements[0]; i++)
        t->data[0][i] = fk_bf16_from_float(fk_bf16_to_float(t->data[0][i]) * factor);
    t->host.softmax_scale = 0.6931471805599453f;
}

static inline void sample_check(const sample *s, const sample_tensors *t) {
    const fk_args *a = &t->host;
    const int64_t dv = t->p.head_dim_v, rows = (int64_t)t->rows_q;
    double *exact = malloc(t->elements[3] * sizeof(double)), *eager = malloc(t->elements[3] * sizeof(double));
    double *lse = malloc(t->rows_q * sizeof(double)), ours = 0, theirs = 0;
    if (fk_reference(&t->p, a, FK_REFERENCE_F64, exact, lse) || fk_reference(&t->p, a, FK_REFERENCE_EAGER, eager, NULL))
        fail_msg("%s: %s", s->spelling, fk_last_error());
    for (int64_t row = 0; row < rows; row++) {
        const int64_t i = row % a->seqlen_q, h = row / a->seqlen_q % a->num_heads_q;
        const int64_t b = row / a->seqlen_q / a->num_heads_q;
        const uint16_t *o = t->data[3] + b * a->o_stride[0] + i * a->o_stride[1] + h * a->o_stride[2];
        for (int64_t c = 0; c < dv; c++) {
            const double got = (double)(t->p.dtype == FK_BF16 ? fk_bf16_to_float(o[c]) : fk_fp16_to_float(o[c]));
            const double want = exact[row * dv + c];
            if (!isfinite(got))
                fail_msg("%s: o[%d][%d][%d][%d] is %g", s->spelling, (int)b, (int)h, (int)i, (int)c, got);
            ours = fmax(ours, fabs(got - want));
            theirs = fmax(theirs, fabs(eager[row * dv + c] - want));
        }
        const double got = (double)t->lse[row];
        if (isinf(lse[row]) ? got != lse[row] : !(fabs(got - lse[row]) < sample_lse_limit(&t->p)))
            fail_msg("%s: lse[%d][%d][%d] is %g, not %g", s->spelling, (int)b, (int)h, (int)i, got, lse[row]);
    }
    print_message("%s for %s: error %.2e, eager %.2e\n", s->spelling, s->plan_for ? s->plan_for : "this GPU", ours,
                  theirs);
    assert_true(ours <= 2 * theirs + 1e-7);
    free(exact);
    free(eager);
    free(lse);
}

/** The whole of one sample in `context`. A softmax_scale of 0: 1 / sqrt(head_dim). False: too little memory. */
static inline bool sample_run_scaled(fk_context *context, const sample *s, float softmax_scale, fk_kernel_info *info) {
    fk_kernel *kernel;
    sample_tensors t;
    const bool fits = sample_make(context, s, &t);
    if (fits) {
        t.args.softmax_scale = t.host.softmax_scale = softmax_scale;
        if (fk_kernel_create(context, &t.p, &kernel)) fail_msg("%s: %s", s->spelling, fk_last_error());
        assert_int_equal(fk_kernel_describe(kernel, info), FK_OK);
        if (launch_once(context, kernel, &t.args)) fail_msg("%s: %s", s->spelling, fk_last_error());
        sample_fetch(context, s, &t);
        if (t.p.fast) sample_prescale(&t);
        sample_check(s, &t);
        fk_kernel_destroy(kernel);
    }
    sample_free(context, &t);
    return fits;
}

static inline bool sample_run(fk_context *context, const sample *s, fk_kernel_info *info) {
    return sample_run_scaled(context, s, 0, info);
}

#endif
