/* The mask that dropout leaves in the results of both passes, on any device, against its definition. */
#ifndef FK_TESTS_DROPOUT_SAMPLE_H
#define FK_TESTS_DROPOUT_SAMPLE_H

#include "backward_sample.h"

static inline fk_context *dropout_context(const char *device, const char *plan_for) {
    fk_context_options options = FK_CONTEXT_OPTIONS_INIT;
    fk_context *context;
    options.device = device, options.plan_for = plan_for, options.cache_mode = FK_CACHE_OFF;
    if (fk_context_create(&options, &context)) fail_msg("%s", fk_last_error());
    return context;
}

static inline fk_kernel *dropout_kernel(fk_context *context, const fk_problem *p) {
    fk_kernel *kernel;
    if (fk_kernel_create(context, p, &kernel)) fail_msg("%s", fk_last_error());
    return kernel;
}

static inline void dropout_set(backward_tensors *t, double p) {
    t->args.dropout_p = t->host.dropout_p = p;
    t->args.dropout_seed = t->host.dropout_seed = 0x123456789abcdef0;
    t->args.dropout_offset = t->host.dropout_offset = 7;
}

static inline uint16_t *dropout_row(const backward_tensors *t, int i, const int64_t stride[3], int64_t b, int64_t s,
                                    int64_t h) {
    return t->data[i] + b * stride[0] + s * stride[1] + h * stride[2];
}

/* q = k = 0, so that all weights of a row are equal; v and dout are unit vectors, so that o and dv are the weights that
 * are left, with their columns the keys and the queries. */
static inline void dropout_fill_unit(fk_context *context, backward_tensors *t) {
    const fk_args *a = &t->host;
    const uint16_t one = t->p.dtype == FK_BF16 ? fk_bf16_from_float(1) : fk_fp16_from_float(1);
    for (int i = BWD_Q; i <= BWD_DOUT; i++)
        memset(t->data[i], 0, t->rows[i] * t->dim[i] * 2);
    for (int64_t b = 0; b < a->batch; b++)
        for (int64_t h = 0; h < a->num_heads_q; h++) {
            for (int64_t k = 0; k < a->seqlen_k; k++)
                dropout_row(t, BWD_V, a->v_stride, b, k, h)[k] = one;
            for (int64_t q = 0; q < a->seqlen_q; q++)
                dropout_row(t, BWD_DOUT, a->dout_stride, b, q, h)[q] = one;
        }
    for (int i = BWD_Q; i <= BWD_DOUT; i++)
        sample_copy(context, t->device[i], (char *)t->data[i], t->rows[i], t->dim[i] * 2, t->stride[i] * 2, true);
}

/* Element (q, k) of o, and of dv, is not 0 exactly where the mask keeps it. */
static inline void dropout_assert_shown(const backward_tensors *t, const uint8_t *mask, bool in_dv) {
    const fk_args *a = &t->host;
    for (int64_t b = 0; b < a->batch; b++)
        for (int64_t h = 0; h < a->num_heads_q; h++)
            for (int64_t q = 0; q < a->seqlen_q; q++)
                for (int64_t k = 0; k < a->seqlen_k; k++) {
                    const uint16_t x = in_dv ? dropout_row(t, BWD_DV, a->dv_stride, b, k, h)[q]
                                             : dropout_row(t, BWD_O, a->o_stride, b, q, h)[k];
                    assert_int_equal(x != 0, *mask++);
                }
}

static inline size_t dropout_count(const backward_tensors *t) {
    return t->rows[BWD_Q] * (size_t)t->host.seqlen_k;
}

static inline void dropout_assert_told(fk_context *context, const fk_kernel *kernel, const backward_tensors *t,
                                       const uint8_t *mask) {
    const size_t count = dropout_count(t);
    uint8_t *told = malloc(count);
    void *device = NULL;
    assert_non_null(told);
    memset(told, 7, count);
    if (fk_device_malloc(context, count, &device) || fk_copy_to_device(context, device, told, count) ||
        fk_keep_mask(kernel, &t->args, device, NULL) || fk_synchronize(context, NULL) ||
        fk_copy_from_device(context, told, device, count))
        fail_msg("%s", fk_last_error());
    assert_memory_equal(told, mask, count);
    fk_device_free(context, device);
    free(told);
}

static inline void dropout_execute(fk_context *context, const fk_kernel *kernel, backward_tensors *t) {
    const size_t bytes = fk_kernel_workspace(kernel, &t->args);
    void *workspace = NULL;
    if (bytes && fk_device_malloc(context, bytes + 256, &workspace)) fail_msg("%s", fk_last_error());
    void *aligned = (void *)(((uintptr_t)workspace + 255) / 256 * 256);
    if (fk_execute(kernel, &t->args, aligned, bytes, NULL) || fk_synchronize(context, NULL))
        fail_msg("%s", fk_last_error());
    fk_device_free(context, workspace);
}

/** The mask of both passes of s, whose spelling is that of the backward pass; head_dim_v is at least seqlen_q and
 *  seqlen_k. @return the mask, malloc'ed */
static inline uint8_t *dropout_check_mask(const char *device, const sample *s, double p) {
    fk_context *context = dropout_context(device, s->plan_for);
    backward_tensors t;
    assert_true(backward_make(context, s, &t));
    dropout_set(&t, p);
    t.args.dlse = NULL;
    dropout_fill_unit(context, &t);
    uint8_t *mask = malloc(dropout_count(&t));
    assert_non_null(mask);
    assert_int_equal(fk_reference_keep_mask(&t.p, &t.host, mask), FK_OK);
    fk_kernel *backward = dropout_kernel(context, &t.p);
    for (int split = 0; split < 2; split++) {
        fk_problem forward = t.p;
        forward.op = FK_FORWARD, forward.deterministic = 0, forward.split = split;
        t.args.num_splits = 2 * split;
        fk_kernel *kernel = dropout_kernel(context, &forward);
        dropout_execute(context, kernel, &t);
        backward_fetch(context, &t, BWD_O);
        dropout_assert_shown(&t, mask, false);
        dropout_assert_told(context, kernel, &t, mask);
        fk_kernel_destroy(kernel);
    }
    dropout_execute(context, backward, &t);
    backward_fetch(context, &t, BWD_DV);
    dropout_assert_shown(&t, mask, true);
    dropout_assert_told(context, backward, &t, mask);
    fk_kernel_destroy(backward);
    backward_free(context, &t);
    fk_context_destroy(context);
    return mask;
}

/** A dropped weight may be more than fp16 holds: of one query the term takes 10 nats of the score at its own place, by
 *  which the row's reference is estimated, and of the others' keys one scores 2 nats more, which only its weight in
 * that row makes infinite. Where that one is dropped the row is right, if nothing but the sum of the row knows of it.
 */
static inline void dropout_check_infinite(const char *device, const char *plan_for, int64_t dv) {
    enum { N = 40, KEY = 3 };
    fk_context *context = dropout_context(device, plan_for);
    char spelling[120];
    snprintf(spelling, sizeof spelling, "bwd fp16 d64 dv%d dropout", (int)dv);
    sample s = {spelling, plan_for, 1, 1, 1, N, N, FK_BSHD, 0};
    backward_tensors t;
    uint8_t mask[N * N];
    assert_true(backward_make(context, &s, &t));
    dropout_set(&t, 0.5);
    assert_int_equal(fk_reference_keep_mask(&t.p, &t.host, mask), FK_OK);
    int query = N - 1;
    while (query > KEY && mask[query * N + KEY])
        query--;
    assert_true(query > KEY);
    backward_free(context, &t);
    snprintf(spelling, sizeof spelling, "bwd fp16 d64 dv%d dropout score=\"k == q && q == %d ? s - 10 : s\"", (int)dv,
             query);
    assert_true(backward_make(context, &s, &t));
    dropout_set(&t, 0.5);
    memset(t.data[BWD_Q], 0, sizeof(uint16_t) * N * 64);
    memset(t.data[BWD_K], 0, sizeof(uint16_t) * N * 64);
    for (int i = 0; i < N; i++)
        t.data[BWD_Q][i * 64] = fk_fp16_from_float(16);
    t.data[BWD_K][KEY * 64] = fk_fp16_from_float(1);
    for (int i = BWD_Q; i <= BWD_K; i++)
        sample_copy(context, t.device[i], (char *)t.data[i], N, 128, 128, true);
    fk_problem forward = t.p;
    forward.op = FK_FORWARD;
    fk_kernel *kernel = dropout_kernel(context, &forward);
    dropout_execute(context, kernel, &t);
    backward_fetch(context, &t, BWD_O);
    double *exact = malloc(sizeof(double) * N * (size_t)dv);
    assert_non_null(exact);
    assert_int_equal(fk_reference(&forward, &t.host, FK_REFERENCE_F64, exact, NULL), FK_OK);
    for (int64_t i = 0; i < N * dv; i++) {
        const double got = (double)fk_fp16_to_float(t.data[BWD_O][i]);
        if (!(fabs(got - exact[i]) <= 4e-3))
            fail_msg("o[%d][%d] is %g, not %g; query %d", (int)(i / dv), (int)(i % dv), got, exact[i], query);
    }
    free(exact);
    fk_kernel_destroy(kernel);
    backward_free(context, &t);
    fk_context_destroy(context);
}

#endif
