#include "check.h"
#include "half.h"

#include <float.h>
#include <math.h>
#include <stdlib.h>

/* float32 lse: what accumulating and rounding in float32 alone may cost, relative to the largest |lse|. */
static const double lse_floor = 16 * (double)FLT_EPSILON;

double check_ratio(const error_pair *e) {
    const double against = e->eager > e->floor ? e->eager : e->floor;
    return against > 0 ? e->kernel / against : e->kernel > 0 ? INFINITY : 0;
}

/* Accumulates one element. Equal infinities are no error; where float64 itself is NaN there is nothing to compare. */
typedef struct errors {
    double largest, square;
    int64_t wrong;
} errors;

static void add(errors *e, double value, double exact) {
    if (isnan(exact) || value == exact) return;
    const double d = fabs(value - exact);
    if (!isfinite(d)) {
        e->wrong++;
        return;
    }
    if (d > e->largest) e->largest = d;
    e->square += d * d;
}

typedef struct references {
    double *o64, *o_eager, *lse64, *lse_eager;
} references;

static void compare_o(const tensors *t, const fk_problem *p, const references *r, check *out) {
    const fk_args *a = &t->args;
    errors kernel = {0}, eager = {0};
    double largest = 0, square = 0;
    const double unit = p->dtype == FK_BF16 ? 0x1p-9 : 0x1p-12; /* half the spacing just below a power of two */
    size_t i = 0;                                               /* of [batch, head, seqlen, dim] */
    for (int64_t b = 0; b < a->batch; b++)
        for (int64_t h = 0; h < a->num_heads_q; h++)
            for (int64_t s = 0; s < a->seqlen_q; s++) {
                const uint16_t *row = t->o + b * a->o_stride[0] + s * a->o_stride[1] + h * a->o_stride[2];
                for (int32_t d = 0; d < p->head_dim_v; d++, i++) {
                    const double exact = r->o64[i];
                    add(&kernel, (double)half_value(row[d], p->dtype), exact);
                    add(&eager, r->o_eager[i], exact);
                    if (isfinite(exact) && fabs(exact) > largest) largest = fabs(exact);
                    if (isfinite(exact)) square += exact * exact;
                }
            }
    out->wrong = kernel.wrong;
    const double norm = square > 0 ? sqrt(square) : 1;
    out->max_abs = (error_pair){kernel.largest, eager.largest, unit * largest};
    out->frobenius = (error_pair){sqrt(kernel.square) / norm, sqrt(eager.square) / norm, unit / 2};
}

static void compare_lse(const tensors *t, const references *r, check *out) {
    errors kernel = {0}, eager = {0};
    double largest = 1;
    for (size_t i = 0; i < t->lse_bytes / sizeof(float); i++) {
        add(&kernel, (double)t->lse[i], r->lse64[i]);
        add(&eager, r->lse_eager[i], r->lse64[i]);
        if (isfinite(r->lse64[i]) && fabs(r->lse64[i]) > largest) largest = fabs(r->lse64[i]);
    }
    out->wrong += kernel.wrong;
    out->lse = (error_pair){kernel.largest, eager.largest, lse_floor * largest};
}

cli_exit check_result(const tensors *t, const fk_problem *problem, check *out) {
    const size_t rows = t->lse_bytes / sizeof(float), elements = t->o_bytes / 2;
    references r = {malloc(elements * sizeof(double)), malloc(elements * sizeof(double)), malloc(rows * sizeof(double)),
                    malloc(rows * sizeof(double))};
    cli_exit code = CLI_OK;
    if (r.o64 && r.o_eager && r.lse64 && r.lse_eager) {
        cli_progress("float64 and eager references on the CPU");
        fk_status status = fk_reference(problem, &t->args, FK_REFERENCE_F64, r.o64, r.lse64);
        if (status == FK_OK) status = fk_reference(problem, &t->args, FK_REFERENCE_EAGER, r.o_eager, r.lse_eager);
        cli_progress("%s", "");
        if (status != FK_OK) code = cli_fail_status(status);
    } else {
        code = cli_fail(CLI_FAILED, "no memory for the references, %zu bytes", 16 * (elements + rows));
    }
    if (code == CLI_OK) {
        compare_o(t, problem, &r, out);
        compare_lse(t, &r, out);
        out->ratio = fmax(check_ratio(&out->max_abs), fmax(check_ratio(&out->frobenius), check_ratio(&out->lse)));
        if (out->wrong) out->ratio = INFINITY;
    }
    free(r.o64);
    free(r.o_eager);
    free(r.lse64);
    free(r.lse_eager);
    return code;
}

static void print_pair(const char *name, const error_pair *e) {
    printf("          %-18s %10.3e  %10.3e  %5.2f\n", name, e->kernel, e->eager, check_ratio(e));
}

void check_print(const check *c) {
    printf("Check     against float64        kernel       eager  ratio\n");
    print_pair("max abs error", &c->max_abs);
    print_pair("relative Frobenius", &c->frobenius);
    print_pair("lse max abs error", &c->lse);
    if (c->wrong) printf("          %lld elements are not finite where float64 is\n", (long long)c->wrong);
    printf("          %s: the limit of each ratio is %g\n", c->ratio <= CHECK_MAX_RATIO ? "good" : "FAILED",
           CHECK_MAX_RATIO);
}
