#include "check.h"
#include "half.h"

#include <float.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* float32 lse: what accumulating and rounding in float32 alone may cost, relative to the largest |lse|. */
static const double lse_floor = 16 * (double)FLT_EPSILON;

double check_ratio(const error_pair *e) {
    const double against = e->eager > e->floor ? e->eager : e->floor;
    return against > 0 ? e->kernel / against : e->kernel > 0 ? INFINITY : 0;
}

/* Accumulates one element. Equal infinities are no error; where float64 itself is NaN there is nothing to compare. */
typedef struct errors {
    double largest, square;
    int64_t wrong, skipped;
} errors;

static void add(errors *e, double value, double exact) {
    e->skipped += isnan(exact);
    if (isnan(exact) || value == exact) return;
    const double d = fabs(value - exact);
    if (!isfinite(d)) {
        e->wrong++;
        return;
    }
    if (d > e->largest) e->largest = d;
    e->square += d * d;
}

/* A result, and where it lies in args and in the references' [batch, head, seqlen, dim]. */
typedef struct result {
    const char *name;
    const void *data;
    const int64_t *stride;
    int64_t batch, heads, seqlen, dim;
    double *exact, *eager;
} result;

static size_t num_elements(const result *r) {
    return (size_t)(r->batch * r->heads) * (size_t)(r->seqlen * r->dim);
}

static int results_of(const tensors *t, const fk_problem *p, result out[3]) {
    const fk_args *a = &t->args;
    const int64_t b = p->packed ? 1 : a->batch, hq = a->num_heads_q, hkv = a->num_heads_kv;
    const int64_t sq = p->packed ? a->total_q : a->seqlen_q, sk = p->packed ? a->total_k : a->seqlen_k;
    if (p->op == FK_FORWARD) {
        out[0] = (result){"o", t->data[TENSOR_O], a->o_stride, b, hq, sq, p->head_dim_v, NULL, NULL};
        return 1;
    }
    out[0] = (result){"dq", t->data[TENSOR_DQ], a->dq_stride, b, hq, sq, p->head_dim, NULL, NULL};
    out[1] = (result){"dk", t->data[TENSOR_DK], a->dk_stride, b, hkv, sk, p->head_dim, NULL, NULL};
    out[2] = (result){"dv", t->data[TENSOR_DV], a->dv_stride, b, hkv, sk, p->head_dim_v, NULL, NULL};
    return 3;
}

/* What a weight of e4m3 may be off by with `fast`, as a share of it: its logarithm is rounded. */
static const double ROUGH_WEIGHT = 0.09;

/* What counts as no error, relative to a result's largest element: half the spacing just below a power of two; of fp32
 * four times that, which a kernel may round where eager is exact, and backward what rounding lse leaves of
 * P, which eager keeps; of e4m3 twice that of the weights, which eager happens to round less where few of them are all,
 * and with `fast` what rounding a logarithm comes to. */
static double unit_of(const tensors *t, const fk_problem *p) {
    const float *lse = t->data[TENSOR_LSE];
    double largest = 0;
    for (size_t i = 0; p->op == FK_BACKWARD && i < t->bytes[TENSOR_LSE] / sizeof(float); i++)
        if (isfinite(lse[i])) largest = fmax(largest, fabs((double)lse[i]));
    switch (p->dtype) {
    case FK_FP32:
        return 0x1p-23 * (1 + largest);
    case FK_E4M3:
        return p->fast ? ROUGH_WEIGHT : 0x1p-4;
    case FK_BF16:
        return 0x1p-9;
    default:
        return 0x1p-12;
    }
}

static check_part compare(const result *r, int32_t dtype, double unit, check *out) {
    errors kernel = {0}, eager = {0};
    double largest = 0, square = 0;
    size_t i = 0;
    for (int64_t b = 0; b < r->batch; b++)
        for (int64_t h = 0; h < r->heads; h++)
            for (int64_t s = 0; s < r->seqlen; s++) {
                const int64_t row = b * r->stride[0] + s * r->stride[1] + h * r->stride[2];
                for (int64_t d = 0; d < r->dim; d++, i++) {
                    const double exact = r->exact[i];
                    add(&kernel, (double)element_get(r->data, (size_t)(row + d), output_dtype(dtype)), exact);
                    add(&eager, r->eager[i], exact);
                    if (isfinite(exact) && fabs(exact) > largest) largest = fabs(exact);
                    if (isfinite(exact)) square += exact * exact;
                }
            }
    out->wrong += kernel.wrong;
    out->skipped += kernel.skipped;
    out->elements += (int64_t)i;
    const double norm = square > 0 ? sqrt(square) : 1;
    check_part part = {r->name,
                       {kernel.largest, eager.largest, unit * (largest > 0 ? largest : 1)},
                       {sqrt(kernel.square) / norm, sqrt(eager.square) / norm, unit / 2},
                       0};
    part.ratio = fmax(check_ratio(&part.max_abs), check_ratio(&part.frobenius));
    return part;
}

/* The largest norm of a row of q or k. */
static double largest_row(const tensors *t, const fk_problem *p, int which) {
    const int32_t dtype = which == TENSOR_K ? kv_dtype(p) : p->dtype;
    const size_t dim = (size_t)p->head_dim, rows = t->bytes[which] / element_bytes(dtype) / dim;
    double largest = 0;
    for (size_t i = 0; i < rows; i++) {
        double square = 0;
        for (size_t d = 0; d < dim; d++)
            square += pow((double)element_get(t->data[which], i * dim + d, dtype), 2);
        largest = fmax(largest, square);
    }
    return sqrt(largest);
}

static double score_scale(const tensors *t, const fk_problem *p) {
    return t->args.softmax_scale > 0 ? (double)t->args.softmax_scale : 1 / sqrt((double)p->head_dim);
}

/* What `fast` may leave of lse: of e4m3 the sums of rounded weights; of bf16 those of a row's first tile, and half a
 * unit in the last place of all elements of a query. */
static double rough_sums(const tensors *t, const fk_problem *p) {
    if (!p->fast) return 0;
    if (p->dtype == FK_E4M3) return ROUGH_WEIGHT + 0x1p-13 * (double)t->args.seqlen_k;
    return 0x1p-8 + 0x1p-9 * score_scale(t, p) * largest_row(t, p, TENSOR_Q) * largest_row(t, p, TENSOR_K);
}

/* Tensor cores add products of 8 bits with some 13 bits of the largest number at hand, once for each 32 of the head
 * dim: what that may leave of a score. */
static double rough_scores(const tensors *t, const fk_problem *p) {
    const fk_args *a = &t->args;
    if (p->dtype != FK_E4M3) return 0;
    double scale = score_scale(t, p);
    if (a->q_descale) scale *= (double)*a->q_descale;
    if (a->k_descale) scale *= (double)*a->k_descale;
    return 0x1p-13 * ceil((double)p->head_dim / 32) * scale * largest_row(t, p, TENSOR_Q) * largest_row(t, p, TENSOR_K);
}

static error_pair compare_lse(const tensors *t, const fk_problem *p, const double *exact, const double *by_eager,
                              int64_t *wrong) {
    errors kernel = {0}, eager = {0};
    double largest = 1;
    const float *lse = t->data[TENSOR_LSE];
    for (size_t i = 0; i < t->bytes[TENSOR_LSE] / sizeof(float); i++) {
        add(&kernel, (double)lse[i], exact[i]);
        add(&eager, by_eager[i], exact[i]);
        if (isfinite(exact[i]) && fabs(exact[i]) > largest) largest = fabs(exact[i]);
    }
    *wrong += kernel.wrong;
    const double rough = rough_scores(t, p) + rough_sums(t, p);
    return (error_pair){kernel.largest, eager.largest, lse_floor * largest + rough};
}

static fk_status refer(const tensors *t, const fk_problem *p, const result *r, double *lse64, double *lse_eager) {
    fk_status status = FK_OK;
    for (int kind = FK_REFERENCE_F64; kind <= FK_REFERENCE_EAGER && status == FK_OK; kind++) {
        const bool f64 = kind == FK_REFERENCE_F64;
        double *out[3];
        for (int i = 0; i < 3; i++)
            out[i] = f64 ? r[i].exact : r[i].eager;
        status = p->op == FK_FORWARD
                     ? fk_reference(p, &t->args, (fk_reference_kind)kind, out[0], f64 ? lse64 : lse_eager)
                     : fk_reference_backward(p, &t->args, (fk_reference_kind)kind, out[0], out[1], out[2]);
    }
    return status;
}

cli_exit check_result(const tensors *t, const fk_problem *problem, check *out) {
    result r[3] = {{0}};
    const size_t rows = t->bytes[TENSOR_LSE] / sizeof(float);
    double *lse64 = malloc(rows * sizeof *lse64), *lse_eager = malloc(rows * sizeof *lse_eager);
    cli_exit code = CLI_OK;
    *out = (check){.num_parts = results_of(t, problem, r)};
    if (lse64) memset(lse64, 0xff, rows * sizeof *lse64); /* NaN, where rows belong to no sequence: not compared */
    if (!lse64 || !lse_eager) code = cli_fail(CLI_FAILED, "no memory for the references' lse");
    for (int i = 0; i < out->num_parts && code == CLI_OK; i++) {
        r[i].exact = malloc(num_elements(&r[i]) * sizeof(double));
        r[i].eager = malloc(num_elements(&r[i]) * sizeof(double));
        if (r[i].exact) memset(r[i].exact, 0xff, num_elements(&r[i]) * sizeof(double)); /* NaN: not compared */
        if (!r[i].exact || !r[i].eager)
            code = cli_fail(CLI_FAILED, "no memory for the references, %zu bytes", 16 * num_elements(&r[i]));
    }
    if (code == CLI_OK) {
        cli_progress("float64 and eager references on the CPU");
        const fk_status status = refer(t, problem, r, lse64, lse_eager);
        cli_progress("%s", "");
        if (status != FK_OK) code = cli_fail_status(status);
    }
    for (int i = 0; i < out->num_parts && code == CLI_OK; i++) {
        out->part[i] = compare(&r[i], problem->dtype, unit_of(t, problem), out);
        if (out->part[i].ratio > out->part[out->worst].ratio) out->worst = i;
    }
    if (code == CLI_OK && problem->op == FK_FORWARD) out->lse = compare_lse(t, problem, lse64, lse_eager, &out->wrong);
    out->ratio = fmax(out->part[out->worst].ratio, check_ratio(&out->lse));
    if (out->wrong) out->ratio = INFINITY;
    for (int i = 0; i < 3; i++) {
        free(r[i].exact);
        free(r[i].eager);
    }
    free(lse64);
    free(lse_eager);
    return code;
}

/* Both references' gradients of one array, by turns. */
static cli_exit refer_grad(const fk_problem *problem, const fk_args *args, size_t i, const result *r) {
    double *out[FK_MAX_ARRAYS] = {NULL};
    fk_status status = FK_OK;
    for (int kind = FK_REFERENCE_F64; kind <= FK_REFERENCE_EAGER && status == FK_OK; kind++) {
        out[i] = kind == FK_REFERENCE_F64 ? r->exact : r->eager;
        status = fk_reference_arrays(problem, args, (fk_reference_kind)kind, out);
    }
    return status == FK_OK ? CLI_OK : cli_fail_status(status);
}

cli_exit check_grads(const grads *g, const tensors *t, const fk_problem *problem, const fk_args *args, check *out) {
    const double unit = problem->dtype == FK_FP32 ? unit_of(t, problem) : 0x1p-23;
    cli_exit code = CLI_OK;
    for (size_t i = 0; i < g->count && code == CLI_OK; i++) {
        static const int64_t stride[3] = {0, 0, 0};
        if (!g->host[i]) continue;
        result r = {g->name[i], g->host[i], stride, 1, 1, 1, g->elements[i], NULL, NULL};
        r.exact = malloc(num_elements(&r) * sizeof(double));
        r.eager = malloc(num_elements(&r) * sizeof(double));
        if (!r.exact || !r.eager)
            code = cli_fail(CLI_FAILED, "no memory for the references, %zu bytes", 16 * num_elements(&r));
        cli_progress("float64 and eager gradients of %s on the CPU", g->name[i]);
        if (code == CLI_OK) code = refer_grad(problem, args, i, &r);
        cli_progress("%s", "");
        if (code == CLI_OK) {
            check_part *part = &out->part[out->num_parts++];
            *part = compare(&r, FK_FP32, unit, out);
            if (part->ratio > out->part[out->worst].ratio) out->worst = out->num_parts - 1;
            out->ratio = out->wrong ? INFINITY : fmax(out->ratio, part->ratio);
        }
        free(r.exact);
        free(r.eager);
    }
    return code;
}

static void print_pair(const char *name, const char *what, const error_pair *e) {
    printf("          %-3s %-18s %10.3e  %10.3e  %5.2f\n", name, what, e->kernel, e->eager, check_ratio(e));
}

void check_print(const check *c) {
    printf("Check     against float64            kernel       eager  ratio\n");
    if (c->skipped)
        printf("          %lld of %lld elements are NaN in float64, or of no sequence: not compared\n",
               (long long)c->skipped, (long long)c->elements);
    for (int i = 0; i < c->num_parts; i++) {
        print_pair(c->part[i].name, "max abs error", &c->part[i].max_abs);
        print_pair("", "relative Frobenius", &c->part[i].frobenius);
    }
    if (c->num_parts == 1) print_pair("lse", "max abs error", &c->lse);
    if (c->wrong) printf("          %lld elements are not finite where float64 is\n", (long long)c->wrong);
    printf("          %s: the limit of each ratio is %g\n", c->ratio <= CHECK_MAX_RATIO ? "good" : "FAILED",
           CHECK_MAX_RATIO);
}
