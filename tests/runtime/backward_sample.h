/* One backward problem with inputs, run on any device after its forward pass and compared with the reference: the error
 * of dq, dk and dv against float64 is at most twice eager's. Tolerances for problems that cancel: tests/random_trial.h.
 */
#ifndef FK_TESTS_BACKWARD_SAMPLE_H
#define FK_TESTS_BACKWARD_SAMPLE_H

#include "sample.h"

enum { BWD_Q, BWD_K, BWD_V, BWD_O, BWD_DOUT, BWD_DQ, BWD_DK, BWD_DV, BWD_TENSORS };

/* Contiguous on the host, in `args` on the device. */
typedef struct backward_tensors {
    fk_problem p;
    fk_args args, host;
    uint16_t *data[BWD_TENSORS];
    void *device[BWD_TENSORS], *lse, *dlse, *workspace;
    size_t rows[BWD_TENSORS], dim[BWD_TENSORS], stride[BWD_TENSORS], workspace_bytes;
    float *host_dlse;
} backward_tensors;

static inline void backward_point(fk_args *a, void *const t[BWD_TENSORS]) {
    a->q = t[BWD_Q], a->k = t[BWD_K], a->v = t[BWD_V], a->o = t[BWD_O], a->dout = t[BWD_DOUT];
    a->dq = t[BWD_DQ], a->dk = t[BWD_DK], a->dv = t[BWD_DV];
}

static inline void backward_sizes(const sample *s, backward_tensors *t) {
    fk_args a = FK_ARGS_INIT;
    if (fk_problem_parse(s->spelling, &t->p) || fk_problem_canonical(&t->p, &t->p)) fail_msg("%s", fk_last_error());
    a.batch = s->batch, a.num_heads_q = s->num_heads_q, a.num_heads_kv = s->num_heads_kv;
    a.seqlen_q = s->seqlen_q, a.seqlen_k = s->seqlen_k;
    assert_int_equal(fk_args_layout(&t->p, s->layout, &a), FK_OK);
    t->host = t->args = a;
    int64_t *const strides[] = {t->args.q_stride,    t->args.k_stride,  t->args.v_stride,  t->args.o_stride,
                                t->args.dout_stride, t->args.dq_stride, t->args.dk_stride, t->args.dv_stride};
    for (int i = 0; i < BWD_TENSORS; i++) {
        const bool keys = i == BWD_K || i == BWD_V || i == BWD_DK || i == BWD_DV;
        const bool values = i == BWD_V || i == BWD_O || i == BWD_DOUT || i == BWD_DV;
        t->rows[i] = (size_t)(a.batch * (keys ? a.num_heads_kv * a.seqlen_k : a.num_heads_q * a.seqlen_q));
        t->dim[i] = (size_t)(values ? t->p.head_dim_v : t->p.head_dim);
        t->stride[i] = s->row_stride ? (size_t)s->row_stride : t->dim[i];
        if (s->row_stride) strides[i][1] = s->row_stride; /* one batch, one head: rows are all there is */
    }
}

static inline bool backward_allocate(fk_context *context, size_t bytes, void **out) {
    const fk_status status = fk_device_malloc(context, bytes, out);
    if (status && status != FK_NO_MEMORY) fail_msg("%s", fk_last_error());
    return status == FK_OK;
}

/* False: the device has too little memory. */
static inline bool backward_make(fk_context *context, const sample *s, backward_tensors *t) {
    memset(t, 0, sizeof *t);
    backward_sizes(s, t);
    for (int i = 0; i < BWD_TENSORS; i++) {
        t->data[i] = malloc(t->rows[i] * t->dim[i] * 2);
        assert_non_null(t->data[i]);
        memset(t->data[i], 0xff, t->rows[i] * t->dim[i] * 2);
        if (i <= BWD_V || i == BWD_DOUT)
            sample_fill(t->data[i], t->rows[i] * t->dim[i], t->p.dtype == FK_BF16, (uint32_t)i + 1);
        if (!backward_allocate(context, t->rows[i] * t->stride[i] * 2, &t->device[i])) return false;
        sample_copy(context, t->device[i], (char *)t->data[i], t->rows[i], t->dim[i] * 2, t->stride[i] * 2, true);
    }
    const size_t row_bytes = t->rows[BWD_Q] * sizeof(float);
    t->host_dlse = malloc(row_bytes);
    assert_non_null(t->host_dlse);
    for (size_t i = 0; i < t->rows[BWD_Q]; i++)
        t->host_dlse[i] = (float)(i % 7) / 4 - 0.75f;
    if (!backward_allocate(context, row_bytes, &t->lse) || !backward_allocate(context, row_bytes, &t->dlse))
        return false;
    assert_int_equal(fk_copy_to_device(context, t->dlse, t->host_dlse, row_bytes), FK_OK);
    backward_point(&t->args, t->device);
    void *host[BWD_TENSORS];
    for (int i = 0; i < BWD_TENSORS; i++)
        host[i] = t->data[i];
    backward_point(&t->host, host);
    t->args.lse = t->lse, t->args.dlse = t->dlse, t->host.dlse = t->host_dlse;
    return true;
}

static inline void backward_free(fk_context *context, backward_tensors *t) {
    for (int i = 0; i < BWD_TENSORS; i++) {
        free(t->data[i]);
        fk_device_free(context, t->device[i]);
    }
    fk_device_free(context, t->lse);
    fk_device_free(context, t->dlse);
    fk_device_free(context, t->workspace);
    free(t->host_dlse);
}

static inline void backward_fetch(fk_context *context, backward_tensors *t, int i) {
    sample_copy(context, t->device[i], (char *)t->data[i], t->rows[i], t->dim[i] * 2, t->stride[i] * 2, false);
}

/* The forward pass leaves o and lse where the backward pass reads them. */
static inline void backward_forward(fk_context *context, const sample *s, backward_tensors *t) {
    fk_problem forward = t->p;
    fk_kernel *kernel;
    forward.op = FK_FORWARD, forward.deterministic = 0;
    if (fk_kernel_create(context, &forward, &kernel)) fail_msg("%s: %s", s->spelling, fk_last_error());
    if (launch_once(context, kernel, &t->args)) fail_msg("%s: %s", s->spelling, fk_last_error());
    fk_kernel_destroy(kernel);
    backward_fetch(context, t, BWD_O);
}

static inline void backward_execute(fk_context *context, const sample *s, backward_tensors *t,
                                    const fk_kernel *kernel) {
    if (fk_execute(kernel, &t->args, t->workspace, t->workspace_bytes, NULL) || fk_synchronize(context, NULL))
        fail_msg("%s: %s", s->spelling, fk_last_error());
    for (int i = BWD_DQ; i <= BWD_DV; i++)
        backward_fetch(context, t, i);
}

static inline void backward_check(const sample *s, const backward_tensors *t) {
    static const char *const names[] = {"dq", "dk", "dv"};
    const int64_t *const strides[] = {t->host.dq_stride, t->host.dk_stride, t->host.dv_stride};
    double *exact[3], *eager[3];
    for (int n = 0; n < 3; n++) {
        const size_t bytes = t->rows[BWD_DQ + n] * t->dim[BWD_DQ + n] * sizeof(double);
        exact[n] = malloc(bytes), eager[n] = malloc(bytes);
    }
    if (fk_reference_backward(&t->p, &t->host, FK_REFERENCE_F64, exact[0], exact[1], exact[2]) ||
        fk_reference_backward(&t->p, &t->host, FK_REFERENCE_EAGER, eager[0], eager[1], eager[2]))
        fail_msg("%s: %s", s->spelling, fk_last_error());
    for (int n = 0; n < 3; n++) {
        const int64_t seqlen = n ? s->seqlen_k : s->seqlen_q, heads = n ? s->num_heads_kv : s->num_heads_q;
        const int64_t dim = (int64_t)t->dim[BWD_DQ + n];
        double ours = 0, theirs = 0;
        for (int64_t row = 0; row < (int64_t)t->rows[BWD_DQ + n]; row++) {
            const int64_t i = row % seqlen, h = row / seqlen % heads, b = row / seqlen / heads;
            const uint16_t *x = t->data[BWD_DQ + n] + b * strides[n][0] + i * strides[n][1] + h * strides[n][2];
            for (int64_t c = 0; c < dim; c++) {
                const double got = (double)(t->p.dtype == FK_BF16 ? fk_bf16_to_float(x[c]) : fk_fp16_to_float(x[c]));
                const double want = exact[n][row * dim + c];
                if (!isfinite(got))
                    fail_msg("%s: %s[%d][%d][%d][%d] is %g", s->spelling, names[n], (int)b, (int)h, (int)i, (int)c,
                             got);
                ours = fmax(ours, fabs(got - want));
                theirs = fmax(theirs, fabs(eager[n][row * dim + c] - want));
            }
        }
        print_message("%s for %s: error of %s %.2e, eager %.2e\n", s->spelling, s->plan_for ? s->plan_for : "this GPU",
                      names[n], ours, theirs);
        assert_true(ours <= 2 * theirs + 1e-5);
        free(exact[n]);
        free(eager[n]);
    }
}

/* More runs, each with the same bits: a hundred on a GPU; on the emulator one, as schedules there are chosen by seed.
 */
static inline void backward_check_bits(fk_context *context, const sample *s, backward_tensors *t,
                                       const fk_kernel *kernel) {
    uint16_t *kept[3];
    for (int n = 0; n < 3; n++) {
        const size_t bytes = t->rows[BWD_DQ + n] * t->dim[BWD_DQ + n] * 2;
        kept[n] = malloc(bytes);
        memcpy(kept[n], t->data[BWD_DQ + n], bytes);
    }
    const int runs = fk_context_is_emulator(context) ? 1 : 99;
    for (int again = 0; again < runs; again++) {
        backward_execute(context, s, t, kernel);
        for (int n = 0; n < 3; n++)
            assert_memory_equal(kept[n], t->data[BWD_DQ + n], t->rows[BWD_DQ + n] * t->dim[BWD_DQ + n] * 2);
    }
    for (int n = 0; n < 3; n++)
        free(kept[n]);
}

/* FNV-1a of the results. */
static inline uint64_t backward_hash(const backward_tensors *t) {
    uint64_t hash = 0xcbf29ce484222325u;
    for (int n = BWD_DQ; n <= BWD_DV; n++)
        for (size_t i = 0; i < t->rows[n] * t->dim[n]; i++)
            hash = (hash ^ t->data[n][i]) * 0x100000001b3u;
    return hash;
}

/** The whole of one sample in `context`. False: too little memory. `hash`: of the results; may be null. */
static inline bool backward_run(fk_context *context, const sample *s, fk_kernel_info *info, uint64_t *hash) {
    fk_kernel *kernel;
    backward_tensors t;
    bool fits = backward_make(context, s, &t);
    if (fits) {
        if (fk_kernel_create(context, &t.p, &kernel)) fail_msg("%s: %s", s->spelling, fk_last_error());
        assert_int_equal(fk_kernel_describe(kernel, info), FK_OK);
        t.workspace_bytes = fk_kernel_workspace(kernel, &t.args);
        fits = backward_allocate(context, t.workspace_bytes, &t.workspace);
        if (fits) {
            backward_forward(context, s, &t);
            backward_execute(context, s, &t, kernel);
            backward_check(s, &t);
            if (hash) *hash = backward_hash(&t);
            if (t.p.deterministic) backward_check_bits(context, s, &t, kernel);
        }
        fk_kernel_destroy(kernel);
    }
    backward_free(context, &t);
    return fits;
}

#endif
