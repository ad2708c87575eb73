#include "tune_check.h"
#include "reference.h"

#include <float.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_RESULTS = 3, NUM_SCALES = 2 };
/* Times an eager framework's error: twice is what tests ask of large inputs, and one small one may be unlucky. */
static const double LIMIT = 3;
/* The second scale makes most rows see one key alone, with scores far apart: fast paths of the softmax end there. */
static const double SHARP = 8;

/* One result and where its references lie, contiguous [batch, heads, rows, columns]. */
typedef struct result {
    const char *name;
    const void *const *data;
    const int64_t *stride;
    int64_t batch, heads, rows;
    int columns;
    double *exact[NUM_SCALES], *eager[NUM_SCALES];
} result;

struct fk_tune_check {
    fk_tune_data data;
    int32_t stored; /* fk_dtype of results */
    result result[MAX_RESULTS];
    int num_results;
    float scale[NUM_SCALES];
};

static size_t num_elements(const result *r) {
    return (size_t)(r->batch * r->heads * r->rows) * (size_t)r->columns;
}

static void list_results(fk_tune_check *c) {
    const fk_problem *p = &c->data.problem;
    const fk_args *a = &c->data.host;
    const int64_t batch = p->packed ? 1 : a->batch;
    const int64_t rows_q = p->packed ? a->total_q : a->seqlen_q, rows_k = p->packed ? a->total_k : a->seqlen_k;
    c->stored = fk_output_dtype(p->dtype);
    if (p->op == FK_FORWARD) {
        c->result[c->num_results++] = (result){.name = "o",
                                               .data = (const void *const *)&a->o,
                                               .stride = a->o_stride,
                                               .batch = batch,
                                               .heads = a->num_heads_q,
                                               .rows = rows_q,
                                               .columns = p->head_dim_v};
        return;
    }
    const struct {
        const char *name;
        void *const *data;
        const int64_t *stride;
        int64_t heads, rows;
        int columns;
    } gradients[] = {{"dq", &a->dq, a->dq_stride, a->num_heads_q, rows_q, p->head_dim},
                     {"dk", &a->dk, a->dk_stride, a->num_heads_kv, rows_k, p->head_dim},
                     {"dv", &a->dv, a->dv_stride, a->num_heads_kv, rows_k, p->head_dim_v}};
    for (int i = 0; i < 3; i++)
        c->result[c->num_results++] = (result){.name = gradients[i].name,
                                               .data = (const void *const *)gradients[i].data,
                                               .stride = gradients[i].stride,
                                               .batch = batch,
                                               .heads = gradients[i].heads,
                                               .rows = gradients[i].rows,
                                               .columns = gradients[i].columns};
}

/* ---- references ---- */

static fk_status refer(fk_tune_check *c, int scale, fk_error *err) {
    fk_status status = FK_OK;
    for (int i = 0; i < c->num_results; i++) {
        result *r = &c->result[i];
        r->exact[scale] = calloc(num_elements(r), sizeof(double));
        r->eager[scale] = calloc(num_elements(r), sizeof(double));
        if (!r->exact[scale] || !r->eager[scale])
            return fk_fail(err, FK_NO_MEMORY, "no memory for references of %zu elements", num_elements(r));
    }
    c->data.host.softmax_scale = c->data.device.softmax_scale = c->scale[scale];
    if (c->data.problem.op == FK_BACKWARD) status = fk_tune_data_forward(&c->data, err);
    for (int kind = FK_REFERENCE_F64; kind <= FK_REFERENCE_EAGER && !status; kind++) {
        double *out[MAX_RESULTS] = {NULL};
        for (int i = 0; i < c->num_results; i++)
            out[i] = kind == FK_REFERENCE_F64 ? c->result[i].exact[scale] : c->result[i].eager[scale];
        status = c->data.problem.op == FK_FORWARD
                     ? fk_reference(&c->data.problem, &c->data.host, (fk_reference_kind)kind, out[0], NULL)
                     : fk_reference_backward(&c->data.problem, &c->data.host, (fk_reference_kind)kind, out[0], out[1],
                                             out[2]);
        if (status) status = fk_fail(err, status, "%s", fk_last_error());
    }
    return status;
}

static int64_t at_most(int64_t value, int64_t limit) {
    return value < limit ? value : limit;
}

/* Ragged ends, several tiles, and two heads of k with their query heads; on the emulator as little as has these. */
static fk_shape small_shape(const fk_context *context, const fk_shape *shape) {
    const bool emulated = context->driver == NULL;
    const int64_t group = at_most(shape->num_heads_q / shape->num_heads_kv, 8);
    const int64_t kv_heads = at_most(shape->num_heads_kv, emulated ? 1 : 2);
    return (fk_shape){at_most(shape->batch, emulated ? 1 : 2), kv_heads * group, kv_heads,
                      at_most(shape->seqlen_q, emulated ? 149 : 331), at_most(shape->seqlen_k, emulated ? 277 : 709)};
}

fk_status fk_tune_check_create(fk_context *context, const fk_problem *canonical, const fk_shape *shape,
                               fk_tune_check **out, fk_error *err) {
    const fk_shape small = small_shape(context, shape);
    fk_tune_check *c = calloc(1, sizeof *c);
    if (!c) return fk_fail(err, FK_NO_MEMORY, "no memory for a check");
    fk_status status = fk_tune_data_make(context, canonical, &small, true, &c->data, err);
    if (!status) list_results(c);
    c->scale[0] = (float)(1 / sqrt(canonical->head_dim));
    c->scale[1] = (float)(SHARP / sqrt(canonical->head_dim));
    for (int i = 0; i < NUM_SCALES && !status; i++)
        status = refer(c, i, err);
    if (status)
        fk_tune_check_destroy(c);
    else
        *out = c;
    return status;
}

void fk_tune_check_destroy(fk_tune_check *c) {
    if (!c) return;
    for (int i = 0; i < c->num_results; i++)
        for (int scale = 0; scale < NUM_SCALES; scale++) {
            free(c->result[i].exact[scale]);
            free(c->result[i].eager[scale]);
        }
    fk_tune_data_free(&c->data);
    free(c);
}

/* ---- comparing ---- */

typedef struct errors {
    double kernel, eager, largest;
    int64_t wrong; /* not finite where float64 is, or the reverse */
} errors;

static void add(errors *e, double value, double eager, double exact) {
    if (isnan(exact)) return;
    if (!isfinite(value) || !isfinite(exact)) {
        e->wrong += !(value == exact); /* equal infinities are no error */
        return;
    }
    e->kernel = fmax(e->kernel, fabs(value - exact));
    if (isfinite(eager)) e->eager = fmax(e->eager, fabs(eager - exact));
    e->largest = fmax(e->largest, fabs(exact));
}

static errors compare(const fk_tune_check *c, const result *r, int scale) {
    errors e = {0};
    float row[FK_MAX_HEAD_DIM];
    size_t at = 0;
    for (int64_t b = 0; b < r->batch; b++)
        for (int64_t h = 0; h < r->heads; h++)
            for (int64_t i = 0; i < r->rows; i++) {
                fk_walk_decode(c->stored, *r->data, r->stride, b, i, h, r->columns, row);
                for (int n = 0; n < r->columns; n++, at++)
                    add(&e, (double)row[n], r->eager[scale][at], r->exact[scale][at]);
            }
    return e;
}

/* Half the spacing of the dtype's values just below a power of two; of fp32 what a kernel may round; of
 * e4m3 that of the weights, and with `fast` what rounding their logarithms comes to. */
static double unit_of(const fk_problem *p) {
    if (p->dtype == FK_E4M3) return p->fast ? 0.09 : 0x1p-4;
    return p->dtype == FK_FP32 ? 0x1p-23 : p->dtype == FK_BF16 ? 0x1p-9 : 0x1p-12;
}

static void judge(const fk_tune_check *c, int scale, double *error, char reason[160]) {
    for (int i = 0; i < c->num_results && !reason[0]; i++) {
        const errors e = compare(c, &c->result[i], scale);
        const double allowed = LIMIT * fmax(e.eager, fmax(unit_of(&c->data.problem) * e.largest, DBL_MIN));
        *error = fmax(*error, e.kernel / allowed);
        if (e.wrong)
            snprintf(reason, 160, "wrong: %lld elements of %s are not finite where float64 is", (long long)e.wrong,
                     c->result[i].name);
        else if (e.kernel > allowed)
            snprintf(reason, 160, "wrong: %s is off by %.3g from float64; %.3g is allowed", c->result[i].name, e.kernel,
                     allowed);
    }
}

fk_status fk_tune_check_run(fk_tune_check *c, const fk_kernel *kernel, double *error, char reason[160], fk_error *err) {
    *error = 0;
    reason[0] = 0;
    fk_status status = FK_OK;
    for (int scale = 0; scale < NUM_SCALES && !status && !reason[0]; scale++) {
        c->data.host.softmax_scale = c->data.device.softmax_scale = c->scale[scale];
        if (c->data.problem.op == FK_BACKWARD) status = fk_tune_data_forward(&c->data, err);
        if (!status) status = fk_tune_data_poison(&c->data, err);
        if (!status) status = fk_tune_data_run(&c->data, kernel, err);
        if (!status) status = fk_tune_data_fetch(&c->data, err);
        if (!status) judge(c, scale, error, reason);
    }
    return status;
}
