#include "random_trial.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define POISON 0xffffu /* a NaN in both dtypes */

/* ---- 16-bit floats ------------------------------------------------------------------------------------ */

static uint16_t encode(fk_dtype dtype, double value) {
    uint16_t bits;
    if (dtype == FK_FP16) {
        const _Float16 half = (_Float16)value;
        memcpy(&bits, &half, sizeof bits);
    } else { /* round to nearest even */
        const float single = (float)value;
        uint32_t word;
        memcpy(&word, &single, sizeof word);
        bits = (uint16_t)((word + 0x7fff + ((word >> 16) & 1)) >> 16);
    }
    return bits;
}

static double decode(fk_dtype dtype, uint16_t bits) {
    if (dtype == FK_FP16) {
        _Float16 half;
        memcpy(&half, &bits, sizeof half);
        return (double)half;
    }
    const uint32_t word = (uint32_t)bits << 16;
    float single;
    memcpy(&single, &word, sizeof single);
    return (double)single;
}

/* ---- memory and calls -------------------------------------------------------------------------------------- */

/* Host memory holds whole allocations, padding included; device memory mirrors it. */
typedef struct trial {
    const drawn *d;
    fk_problem problem;
    fk_context *context;
    fk_kernel *kernel;
    uint16_t *host[4], *again; /* q, k, v, o; o of the second run */
    void *device[4];
    float *lse, *device_lse;
    double *exact_o, *exact_lse, *eager_o;
    verdict *verdict;
} trial;

static bool complain(trial *t, const char *format, ...) __attribute__((format(printf, 2, 3)));
static bool complain(trial *t, const char *format, ...) {
    va_list list;
    va_start(list, format);
    vsnprintf(t->verdict->complaint, sizeof t->verdict->complaint, format, list);
    va_end(list);
    return false;
}

/* A call of the library; its message is the complaint. */
static bool call(trial *t, const char *what, fk_status status) {
    return status == FK_OK || complain(t, "%s: %s: %s", what, fk_status_name(status), fk_last_error());
}

static const layout *layout_of(const drawn *d, int tensor) {
    const layout *const all[4] = {&d->q, &d->k, &d->v, &d->o};
    return all[tensor];
}

static int64_t row_at(const layout *l, int64_t b, int64_t s, int64_t h) {
    return l->offset + b * l->stride[0] + s * l->stride[1] + h * l->stride[2];
}

static size_t lse_count(const fk_args *a) {
    return (size_t)(a->batch * a->num_heads_q * a->seqlen_q);
}

static void fill_input(uint16_t *memory, const layout *l, const drawn *d, int tensor) {
    rng r = {d->seed * 31 + (uint64_t)tensor};
    const double ramp = tensor == 1 ? d->ramp : 0, offset = tensor == 1 ? d->offset_k : 0;
    for (int64_t b = 0; b < l->size[0]; b++)
        for (int64_t s = 0; s < l->size[1]; s++) {
            const double way = (double)s / (double)l->size[1];
            const double scale = (tensor == 2 ? d->scale_v : d->scale_qk) * (1 + (ramp > 0 ? way : way - 1) * ramp);
            for (int64_t h = 0; h < l->size[2]; h++)
                for (int64_t i = 0, at = row_at(l, b, s, h); i < l->dim; i++)
                    memory[at + i] = encode(d->dtype, scale * rng_normal(&r) + offset);
        }
}

static bool allocate(trial *t) {
    const drawn *d = t->d;
    const fk_args *a = &d->args;
    for (int i = 0; i < 4; i++) {
        const layout *l = layout_of(d, i);
        const size_t bytes = (size_t)l->elements * 2;
        t->host[i] = malloc(bytes);
        if (!t->host[i]) return complain(t, "no memory");
        memset(t->host[i], 0xff, bytes);
        if (i < 3) fill_input(t->host[i], l, d, i);
        if (!call(t, "malloc", fk_device_malloc(t->context, bytes, &t->device[i]))) return false;
        if (!call(t, "copy", fk_copy_to_device(t->context, t->device[i], t->host[i], bytes))) return false;
    }
    const size_t rows = lse_count(a), values = rows * (size_t)d->o.dim;
    t->again = malloc((size_t)d->o.elements * 2);
    t->lse = malloc(rows * sizeof *t->lse);
    t->exact_lse = malloc(rows * sizeof(double));
    t->exact_o = malloc(values * sizeof(double));
    t->eager_o = malloc(values * sizeof(double));
    if (!t->again || !t->lse || !t->exact_lse || !t->exact_o || !t->eager_o) return complain(t, "no memory");
    void *lse = NULL;
    if (!call(t, "malloc", fk_device_malloc(t->context, rows * sizeof(float), &lse))) return false;
    t->device_lse = lse;
    memset(t->lse, 0xff, rows * sizeof *t->lse);
    return call(t, "copy", fk_copy_to_device(t->context, lse, t->lse, rows * sizeof(float)));
}

static void release(trial *t) {
    for (int i = 0; i < 4; i++) {
        free(t->host[i]);
        fk_device_free(t->context, t->device[i]);
    }
    fk_device_free(t->context, t->device_lse);
    free(t->again);
    free(t->lse);
    free(t->exact_lse);
    free(t->exact_o);
    free(t->eager_o);
    fk_kernel_destroy(t->kernel);
}

static bool find_kernel(trial *t) {
    fk_kernel_info info;
    if (!call(t, "parse", fk_problem_parse(t->d->spelling, &t->problem))) return false;
    if (!call(t, "kernel", fk_kernel_create(t->context, &t->problem, &t->kernel))) return false;
    if (!call(t, "describe", fk_kernel_describe(t->kernel, &info))) return false;
    t->verdict->compiled = !info.from_store;
    t->verdict->spills = info.image.spill_bytes > 0;
    return true;
}

static bool execute(trial *t, uint16_t *o) {
    const drawn *d = t->d;
    fk_args args = d->args;
    const uint16_t *const base[4] = {t->device[0], t->device[1], t->device[2], t->device[3]};
    args.q = base[0] + d->q.offset;
    args.k = base[1] + d->k.offset;
    args.v = base[2] + d->v.offset;
    args.o = (uint16_t *)t->device[3] + d->o.offset;
    args.lse = d->wants_lse ? t->device_lse : NULL;
    return call(t, "execute", fk_execute(t->kernel, &args, NULL, 0, NULL)) &&
           call(t, "synchronize", fk_synchronize(t->context, NULL)) &&
           call(t, "copy", fk_copy_from_device(t->context, o, t->device[3], (size_t)d->o.elements * 2)) &&
           call(t, "copy", fk_copy_from_device(t->context, t->lse, t->device_lse, lse_count(&args) * sizeof(float)));
}

static bool refer(trial *t) {
    const drawn *d = t->d;
    fk_args args = d->args;
    args.q = t->host[0] + d->q.offset;
    args.k = t->host[1] + d->k.offset;
    args.v = t->host[2] + d->v.offset;
    return call(t, "reference", fk_reference(&t->problem, &args, FK_REFERENCE_F64, t->exact_o, t->exact_lse)) &&
           call(t, "reference", fk_reference(&t->problem, &args, FK_REFERENCE_EAGER, t->eager_o, NULL));
}

/* ---- verdict ------------------------------------------------------------------------------------------ */

typedef struct errors {
    double largest, sum_of_squares;
} errors;

static void add_error(errors *e, double difference) {
    if (fabs(difference) > e->largest) e->largest = fabs(difference);
    e->sum_of_squares += difference * difference;
}

static bool check_lse(trial *t) {
    const fk_args *a = &t->d->args;
    for (size_t i = 0; i < lse_count(a); i++) {
        const double exact = t->exact_lse[i], off = fabs((double)t->lse[i] - exact);
        const bool right = isinf(exact) ? (double)t->lse[i] == exact : off <= 1e-3 + 1e-5 * fabs(exact);
        if (!right)
            return complain(t, "lse[%zu, %zu, %zu] is %g, not %g", i / (size_t)(a->num_heads_q * a->seqlen_q),
                            i / (size_t)a->seqlen_q % (size_t)a->num_heads_q, i % (size_t)a->seqlen_q,
                            (double)t->lse[i], exact);
    }
    return true;
}

/* Compares o with float64 and with eager; leaves POISON in host o where it has been compared. */
static bool check_values(trial *t) {
    const drawn *d = t->d;
    const layout *l = &d->o;
    errors ours = {0, 0}, eager = {0, 0}, exact = {0, 0};
    int64_t worst[4] = {0, 0, 0, 0}, index = 0;
    for (int64_t b = 0; b < l->size[0]; b++)
        for (int64_t h = 0; h < l->size[2]; h++)
            for (int64_t s = 0; s < l->size[1]; s++) {
                const bool unseen = isinf(t->exact_lse[(b * l->size[2] + h) * l->size[1] + s]);
                uint16_t *row = t->host[3] + row_at(l, b, s, h);
                for (int64_t i = 0; i < l->dim; i++, index++) {
                    const double value = decode(d->dtype, row[i]), want = t->exact_o[index];
                    if (isnan(value) || (unseen && value != 0))
                        return complain(t, "o[%lld, %lld, %lld, %lld] is %g, not %g%s", (long long)b, (long long)s,
                                        (long long)h, (long long)i, value, want, unseen ? " (no key is seen)" : "");
                    if (fabs(value - want) > ours.largest) worst[0] = b, worst[1] = s, worst[2] = h, worst[3] = i;
                    add_error(&ours, value - want);
                    add_error(&eager, t->eager_o[index] - want);
                    add_error(&exact, want);
                    row[i] = POISON;
                }
            }
    /* Half a unit in the last place of the largest value; a third of that is the typical rounding error. */
    const double half_ulp = d->dtype == FK_FP16 ? 0x1p-11 : 0x1p-8;
    const double floor_largest = half_ulp * exact.largest + 1e-30;
    const double floor_norm = half_ulp / 3 * sqrt(exact.sum_of_squares) + 1e-30;
    const double by_largest = ours.largest / fmax(eager.largest, floor_largest);
    const double by_norm = sqrt(ours.sum_of_squares) / fmax(sqrt(eager.sum_of_squares), floor_norm);
    t->verdict->ratio = fmax(by_largest, by_norm);
    if (t->verdict->ratio <= 2) return true;
    return complain(t, "error of o is %.2f x eager's (largest: %.3g at [%lld, %lld, %lld, %lld], %.2f x; norm: %.2f x)",
                    t->verdict->ratio, ours.largest, (long long)worst[0], (long long)worst[1], (long long)worst[2],
                    (long long)worst[3], by_largest, by_norm);
}

/* After check_values, all of o's memory must be poison. */
static bool check_padding(trial *t) {
    for (int64_t i = 0; i < t->d->o.elements; i++)
        if (t->host[3][i] != POISON)
            return complain(t, "element %lld of o's memory is padding and was written",
                            (long long)(i - t->d->o.offset));
    return true;
}

static bool try_problem(trial *t) {
    if (!find_kernel(t) || !allocate(t) || !execute(t, t->host[3]) || !refer(t)) return false;
    if (t->d->seed % 4 == 0) {
        if (!execute(t, t->again)) return false;
        if (memcmp(t->again, t->host[3], (size_t)t->d->o.elements * 2)) return complain(t, "a second run differs");
    }
    return (!t->d->wants_lse || check_lse(t)) && check_values(t) && check_padding(t);
}

bool random_trial(fk_context *context, const drawn *d, verdict *out) {
    *out = (verdict){0};
    trial t = {.d = d, .context = context, .verdict = out};
    const bool passed = try_problem(&t);
    release(&t);
    return passed;
}
