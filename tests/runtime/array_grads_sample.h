/* Gradients of declared arrays through the public interface, on any device: forward pass, backward pass, and the error
 * of each gradient against float64, which is at most twice eager's. */
#ifndef FK_TESTS_ARRAY_GRADS_SAMPLE_H
#define FK_TESTS_ARRAY_GRADS_SAMPLE_H

#include "sample.h"

/* summed: arrays repeat one element along their first dimension, and gradients are summed over it. padded: rows of a
 * gradient, which are of keys, begin at multiples of 16 bytes; what lies between them stays. */
enum { GRAD_SUMMED = 1, GRAD_PADDED = 2 };

typedef struct grad_sample {
    const char *spelling, *plan_for; /* null: the device itself */
    int64_t batch, num_heads_q, num_heads_kv, seqlen_q, seqlen_k;
    int how; /* of these; true is GRAD_SUMMED */
} grad_sample;

enum { GRAD_ANY = 64, GRAD_TENSORS = 8, GRAD_RUNS = 3 };

/* q, k, v, o, dout, dq, dk and dv, contiguous. */
typedef struct grad_tensors {
    fk_problem p;
    fk_args args, host;
    uint16_t *data[GRAD_TENSORS];
    size_t elements[GRAD_TENSORS];
    void *device[GRAD_TENSORS], *lse, *workspace, *arrays[FK_MAX_ARRAYS];
    size_t num_arrays, count[FK_MAX_ARRAYS]; /* elements of arrays and of their gradients */
    fk_array_decl decl[FK_MAX_ARRAYS];
    void *values[FK_MAX_ARRAYS];
    float *grads[FK_MAX_ARRAYS];
} grad_tensors;

static inline void *grad_upload(fk_context *context, const void *host, size_t bytes) {
    void *out;
    if (fk_device_malloc(context, bytes, &out) || (host && fk_copy_to_device(context, out, host, bytes)))
        fail_msg("%s", fk_last_error());
    return out;
}

/* Floats from one row to the next, of a gradient whose rows are of keys. */
static inline int64_t grad_row(const grad_sample *s) {
    return s->how & GRAD_PADDED ? (s->seqlen_k + 3) / 4 * 4 : s->seqlen_k;
}

static inline void grad_make_array(fk_context *context, const grad_sample *s, grad_tensors *t, size_t i) {
    const int64_t extents[] = {GRAD_ANY, s->batch, s->num_heads_q, s->seqlen_q, s->seqlen_k};
    fk_array *array = &t->host.array[i];
    int64_t stride = 1;
    for (int d = t->decl[i].rank - 1; d >= 0; d--) {
        array->size[d] = extents[t->decl[i].dim[d]];
        const bool summed = s->how & GRAD_SUMMED && d == 0;
        array->stride[d] = t->host.array_grad[i].stride[d] = summed ? 0 : stride;
        if (!summed) stride *= array->size[d];
        if (s->how & GRAD_PADDED && d == t->decl[i].rank - 1) stride = grad_row(s);
    }
    t->count[i] = (size_t)stride;
    t->values[i] = malloc((size_t)stride * 4);
    t->grads[i] = malloc((size_t)stride * 4);
    for (int64_t j = 0; j < stride; j++) {
        const float x = (float)(j * 37 % 61) / 61 - 0.4f;
        const int32_t n = (int32_t)(j * 37 % 23);
        if (t->decl[i].type == FK_FLOAT32)
            ((float *)t->values[i])[j] = x;
        else if (t->decl[i].type == FK_BFLOAT16)
            ((uint16_t *)t->values[i])[j] = fk_bf16_from_float(x);
        else
            ((int32_t *)t->values[i])[j] = n;
    }
    array->data = t->values[i];
    t->arrays[i] = grad_upload(context, t->values[i], (size_t)stride * 4);
}

static inline void grad_make(fk_context *context, const grad_sample *s, grad_tensors *t) {
    memset(t, 0, sizeof *t);
    if (fk_problem_parse(s->spelling, &t->p)) fail_msg("%s", fk_last_error());
    fk_args a = FK_ARGS_INIT;
    a.batch = s->batch, a.num_heads_q = s->num_heads_q, a.num_heads_kv = s->num_heads_kv;
    a.seqlen_q = s->seqlen_q, a.seqlen_k = s->seqlen_k;
    assert_int_equal(fk_args_layout(&t->p, FK_BSHD, &a), FK_OK);
    t->host = a;
    const size_t rows_q = (size_t)(a.batch * a.num_heads_q * a.seqlen_q);
    const size_t rows_k = (size_t)(a.batch * a.num_heads_kv * a.seqlen_k);
    for (uint32_t i = 0; i < GRAD_TENSORS; i++) {
        const bool keys = i == 1 || i == 2 || i >= 6;
        t->elements[i] = (keys ? rows_k : rows_q) * (size_t)t->p.head_dim;
        t->data[i] = malloc(t->elements[i] * 2);
        sample_fill(t->data[i], t->elements[i], t->p.dtype == FK_BF16, i + 1);
        t->device[i] = grad_upload(context, t->data[i], t->elements[i] * 2);
    }
    t->lse = grad_upload(context, NULL, rows_q * sizeof(float));
    assert_int_equal(fk_problem_arrays(&t->p, t->decl, &t->num_arrays), FK_OK);
    for (size_t i = 0; i < t->num_arrays; i++)
        grad_make_array(context, s, t, i);
    t->host.q = t->data[0], t->host.k = t->data[1], t->host.v = t->data[2], t->host.dout = t->data[4];
    t->args = t->host;
    void **d = t->device;
    t->args.q = d[0], t->args.k = d[1], t->args.v = d[2], t->args.o = d[3], t->args.dout = d[4];
    t->args.dq = d[5], t->args.dk = d[6], t->args.dv = d[7], t->args.lse = t->lse;
    for (size_t i = 0; i < t->num_arrays; i++) {
        t->args.array[i].data = t->arrays[i];
        if (!(t->p.grad >> i & 1)) continue;
        memset(t->grads[i], 0xff, t->count[i] * 4); /* NaN */
        t->args.array_grad[i].data = grad_upload(context, t->grads[i], t->count[i] * 4);
    }
}

static inline void grad_free(fk_context *context, grad_tensors *t) {
    for (int i = 0; i < GRAD_TENSORS; i++) {
        free(t->data[i]);
        fk_device_free(context, t->device[i]);
    }
    for (size_t i = 0; i < t->num_arrays; i++) {
        free(t->values[i]);
        free(t->grads[i]);
        fk_device_free(context, t->arrays[i]);
        fk_device_free(context, t->args.array_grad[i].data);
    }
    fk_device_free(context, t->lse);
    fk_device_free(context, t->workspace);
}

static inline void grad_execute(fk_context *context, const grad_tensors *t, fk_problem p) {
    fk_kernel *kernel;
    if (fk_kernel_create(context, &p, &kernel)) fail_msg("%s", fk_last_error());
    const size_t bytes = fk_kernel_workspace(kernel, &t->args);
    void *workspace = bytes ? grad_upload(context, NULL, bytes) : NULL;
    if (fk_execute(kernel, &t->args, workspace, bytes, NULL) || fk_synchronize(context, NULL))
        fail_msg("%s", fk_last_error());
    fk_device_free(context, workspace);
    fk_kernel_destroy(kernel);
}

static inline void grad_check(const grad_sample *s, const grad_tensors *t) {
    double *exact[FK_MAX_ARRAYS] = {NULL}, *eager[FK_MAX_ARRAYS] = {NULL};
    for (size_t i = 0; i < t->num_arrays; i++) {
        exact[i] = calloc(t->count[i], sizeof(double));
        eager[i] = calloc(t->count[i], sizeof(double));
    }
    if (fk_reference_arrays(&t->p, &t->host, FK_REFERENCE_F64, exact) ||
        fk_reference_arrays(&t->p, &t->host, FK_REFERENCE_EAGER, eager))
        fail_msg("%s: %s", s->spelling, fk_last_error());
    for (size_t i = 0; i < t->num_arrays; i++) {
        double ours = 0, theirs = 0, largest = 0;
        for (size_t j = 0; j < t->count[i] && (t->p.grad >> i & 1); j++) {
            if (s->how & GRAD_PADDED && (int64_t)j % grad_row(s) >= s->seqlen_k) {
                if (!isnan(t->grads[i][j])) fail_msg("%s: %s[%zu] is padding", s->spelling, t->decl[i].name, j);
                continue;
            }
            if (!isfinite(t->grads[i][j])) fail_msg("%s: %s[%zu] is not finite", s->spelling, t->decl[i].name, j);
            ours = fmax(ours, fabs((double)t->grads[i][j] - exact[i][j]));
            theirs = fmax(theirs, fabs(eager[i][j] - exact[i][j]));
            largest = fmax(largest, fabs(exact[i][j]));
        }
        if (t->p.grad >> i & 1)
            print_message("%s: %s up to %.3g, error %.2e, eager's %.2e\n", s->spelling, t->decl[i].name, largest, ours,
                          theirs);
        assert_true(ours <= 2 * theirs + 1e-6 * largest);
        assert_true(ours <= 1e-3 * largest + 1e-5); /* gradients of arrays are not rounded to 16 bits on their way */
        free(exact[i]);
        free(eager[i]);
    }
}

/** The whole of one sample; deterministic problems run several times, with the same bits. Returns a hash of them. */
static inline uint64_t grad_run(fk_context *context, const grad_sample *s, int runs) {
    grad_tensors t;
    uint64_t first = 0;
    grad_make(context, s, &t);
    fk_problem forward = t.p;
    forward.op = FK_FORWARD, forward.deterministic = forward.grad = 0;
    grad_execute(context, &t, forward);
    /* The reference takes delta from the o that the kernel gets. */
    assert_int_equal(fk_copy_from_device(context, t.data[3], t.device[3], t.elements[3] * 2), FK_OK);
    t.host.o = t.data[3];
    for (int run = 0; run < (t.p.deterministic ? runs : 1); run++) {
        uint64_t hash = 14695981039346656037u;
        grad_execute(context, &t, t.p);
        for (size_t i = 0; i < t.num_arrays; i++) {
            if (!(t.p.grad >> i & 1)) continue;
            assert_int_equal(fk_copy_from_device(context, t.grads[i], t.args.array_grad[i].data, t.count[i] * 4),
                             FK_OK);
            for (size_t j = 0; j < t.count[i] * 4; j++)
                hash = (hash ^ ((const unsigned char *)t.grads[i])[j]) * 1099511628211u;
        }
        if (run == 0) first = hash;
        if (hash != first) fail_msg("%s: run %d differs", s->spelling, run);
    }
    grad_check(s, &t);
    grad_free(context, &t);
    return first;
}

#endif
