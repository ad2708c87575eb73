#include "random_trial.h"

#include "random_dropout.h"
#include "random_element.h"
#include "random_grads.h"
#include "random_pages.h"
#include "random_sequences.h"
#include "random_terms.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char *const tensor_name[NUM_TENSORS] = {"q", "k", "v", "o", "dout", "dq", "dk", "dv"};

/* ---- memory and calls -------------------------------------------------------------------------------------- */

/* Host memory holds whole allocations, padding included; device memory mirrors it. */
typedef struct trial {
    const drawn *d;
    fk_problem problem;
    fk_context *context;
    fk_kernel *kernel;
    void *host[NUM_TENSORS], *again[NUM_TENSORS]; /* again: results of the second run */
    void *device[NUM_TENSORS], *device_lse, *device_dlse, *workspace;
    void *device_lengths[4]; /* cu_seqlens_q, cu_seqlens_k, seqused_k, page_table */
    void *device_state;      /* of dropout */
    float *descale[3];       /* of q, k, v: e4m3 */
    void *device_descale[3];
    size_t workspace_bytes;
    float *lse, *dlse;
    double *exact[NUM_TENSORS], *eager[NUM_TENSORS], *exact_lse; /* of results, and of o */
    fk_array array[FK_MAX_ARRAYS];                               /* declared arrays, on the host */
    void *array_host[FK_MAX_ARRAYS], *array_device[FK_MAX_ARRAYS];
    size_t array_bytes[FK_MAX_ARRAYS], num_arrays;
    grads grads;
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

static bool is_result(const drawn *d, int tensor) {
    return d->backward ? tensor >= DQ : tensor == O;
}

static int num_tensors(const drawn *d) {
    return d->backward ? NUM_TENSORS : DOUT;
}

static int64_t row_at(const layout *l, int64_t b, int64_t s, int64_t h) {
    return l->offset + b * l->stride[0] + s * l->stride[1] + h * l->stride[2];
}

static size_t lse_count(const drawn *d) {
    return (size_t)(d->tensor[Q].size[0] * d->args.num_heads_q * d->tensor[Q].size[1]);
}

static size_t value_count(const layout *l) {
    return (size_t)(l->size[0] * l->size[1] * l->size[2] * l->dim);
}

static fk_dtype dtype_of(const drawn *d, int tensor) {
    return tensor == O ? output_dtype(d->dtype) : d->dtype;
}

static void fill_input(void *memory, const layout *l, const drawn *d, int tensor) {
    rng r = {d->seed * 31 + (uint64_t)tensor};
    const double ramp = tensor == K ? d->ramp : 0;
    const double offset = tensor == Q ? d->offset_q : tensor == K ? d->offset_k : 0;
    for (int64_t b = 0; b < l->size[0]; b++)
        for (int64_t s = 0; s < l->size[1]; s++) {
            if (!row_exists(d, tensor, b, s, true)) continue;
            const double way = (double)s / (double)l->size[1];
            const double unit = tensor == DOUT ? 1 : tensor == V ? d->scale_v : d->scale_qk;
            const double scale = unit * (1 + (ramp > 0 ? way : way - 1) * ramp);
            for (int64_t h = 0; h < l->size[2]; h++)
                for (int64_t i = 0, at = row_at(l, b, s, h); i < l->dim; i++)
                    element_set(memory, d->dtype, at + i, scale * rng_normal(&r) + offset);
        }
}

static void *host_tensor(const trial *t, int tensor) {
    return element_at(t->host[tensor], dtype_of(t->d, tensor), t->d->tensor[tensor].offset);
}

static size_t tensor_bytes(const drawn *d, int tensor) {
    return (size_t)d->tensor[tensor].elements * element_bytes(dtype_of(d, tensor));
}

/* Of those that are drawn, `at`: host or device. */
static void point_descales(const trial *t, void *const at[3], fk_args *args) {
    const float **const to[3] = {&args->q_descale, &args->k_descale, &args->v_descale};
    for (int i = 0; i < 3; i++)
        *to[i] = t->d->descaled[i] ? at[i] : NULL;
}

/* Host pointers, as the references take them. */
static fk_args host_args(const trial *t) {
    fk_args args = t->d->args;
    void *const descale[3] = {t->descale[0], t->descale[1], t->descale[2]};
    point_descales(t, descale, &args);
    args.q = host_tensor(t, Q);
    args.k = host_tensor(t, K);
    args.v = host_tensor(t, V);
    if (t->d->backward) args.dout = host_tensor(t, DOUT);
    args.dlse = t->d->backward && t->d->wants_dlse ? t->dlse : NULL;
    memcpy(args.array, t->array, sizeof t->array);
    return args;
}

/* The backward pass starts from exact o and lse, rounded. */
static void fill_forward(trial *t) {
    const drawn *d = t->d;
    const layout *l = &d->tensor[O];
    const double *o = t->exact[O];
    for (int64_t b = 0; b < l->size[0]; b++)
        for (int64_t h = 0; h < l->size[2]; h++)
            for (int64_t s = 0; s < l->size[1]; s++)
                for (int64_t i = 0, at = row_at(l, b, s, h); i < l->dim; i++)
                    element_set(t->host[O], d->dtype, at + i, *o++);
    rng r = {d->seed * 37};
    for (size_t i = 0; i < lse_count(d); i++) {
        t->lse[i] = (float)t->exact_lse[i];
        t->dlse[i] = (float)rng_normal(&r);
    }
}

static bool upload(trial *t, void **device, const void *host, size_t bytes) {
    return call(t, "malloc", fk_device_malloc(t->context, bytes, device)) &&
           (!host || call(t, "copy", fk_copy_to_device(t->context, *device, host, bytes)));
}

static bool allocate_arrays(trial *t) {
    rng r = {t->d->seed * 41};
    fk_array_decl decl[FK_MAX_ARRAYS];
    if (!call(t, "arrays", fk_problem_arrays(&t->problem, decl, &t->num_arrays))) return false;
    for (size_t i = 0; i < t->num_arrays; i++)
        if (!draw_array(&r, &decl[i], &t->d->args, &t->array[i], &t->array_host[i], &t->array_bytes[i]))
            return complain(t, "no memory");
    fk_args args = t->d->args;
    memcpy(args.array, t->array, sizeof t->array);
    return grads_allocate(&r, &t->problem, &args, &t->grads) || complain(t, "no memory");
}

static bool allocate(trial *t) {
    const drawn *d = t->d;
    if (!allocate_arrays(t)) return false;
    const size_t rows = lse_count(d), descales = (size_t)(d->args.batch * d->args.num_heads_kv);
    rng r = {d->seed * 43};
    for (int i = 0; i < 3; i++) {
        t->descale[i] = malloc(descales * sizeof(float));
        if (!t->descale[i]) return complain(t, "no memory");
        for (size_t j = 0; j < descales; j++)
            t->descale[i][j] = (float)exp2((i == 2 ? 3 : 0.7) * (rng_normal(&r) / 3));
    }
    t->lse = malloc(rows * sizeof *t->lse);
    t->dlse = malloc(rows * sizeof *t->dlse);
    t->exact_lse = malloc(rows * sizeof(double));
    if (!t->lse || !t->dlse || !t->exact_lse) return complain(t, "no memory");
    memset(t->lse, 0xff, rows * sizeof *t->lse);
    memset(t->exact_lse, 0xff, rows * sizeof(double));
    for (int i = 0; i < num_tensors(d); i++) {
        const layout *l = &d->tensor[i];
        const size_t bytes = tensor_bytes(d, i);
        t->host[i] = malloc(bytes);
        t->again[i] = malloc(bytes);
        t->exact[i] = malloc(value_count(l) * sizeof(double));
        t->eager[i] = malloc(value_count(l) * sizeof(double));
        if (!t->host[i] || !t->again[i] || !t->exact[i] || !t->eager[i]) return complain(t, "no memory");
        memset(t->host[i], 0xff, bytes);
        memset(t->exact[i], 0xff, value_count(l) * sizeof(double));
        if (i != O && !is_result(d, i)) fill_input(t->host[i], l, d, i);
    }
    return true;
}

static bool refer(trial *t) {
    fk_args args = host_args(t);
    if (!call(t, "reference", fk_reference(&t->problem, &args, FK_REFERENCE_F64, t->exact[O], t->exact_lse)))
        return false;
    if (!t->d->backward)
        return call(t, "reference", fk_reference(&t->problem, &args, FK_REFERENCE_EAGER, t->eager[O], NULL));
    fill_forward(t);
    args.o = host_tensor(t, O);
    for (int kind = FK_REFERENCE_F64; kind <= FK_REFERENCE_EAGER; kind++) {
        double *const *out = kind == FK_REFERENCE_F64 ? t->exact : t->eager;
        const fk_status status =
            fk_reference_backward(&t->problem, &args, (fk_reference_kind)kind, out[DQ], out[DK], out[DV]);
        if (!call(t, "reference", status)) return false;
    }
    return call(t, "reference", grads_refer(&t->grads, &t->problem, &args));
}

/* A workspace may hold anything. */
static bool upload_workspace(trial *t) {
    fk_args sizes = t->d->args;
    memcpy(sizes.array, t->array, sizeof t->array);
    grads_point(&t->grads, false, &sizes);
    t->workspace_bytes = fk_kernel_workspace(t->kernel, &sizes);
    if (!t->workspace_bytes) return true;
    void *anything = malloc(t->workspace_bytes);
    if (!anything) return complain(t, "no memory");
    memset(anything, 0xff, t->workspace_bytes);
    const bool done = upload(t, &t->workspace, anything, t->workspace_bytes);
    free(anything);
    return done;
}

static bool upload_all(trial *t) {
    const drawn *d = t->d;
    const size_t row_bytes = lse_count(d) * sizeof(float);
    for (int i = 0; i < num_tensors(d); i++)
        if (!upload(t, &t->device[i], t->host[i], tensor_bytes(d, i))) return false;
    for (size_t i = 0; i < t->num_arrays; i++)
        if (!upload(t, &t->array_device[i], t->array_host[i], t->array_bytes[i])) return false;
    const size_t count = (size_t)d->args.batch, offsets = (count + 1) * sizeof(int32_t);
    if (d->packed &&
        (!upload(t, &t->device_lengths[0], d->cu_q, offsets) || !upload(t, &t->device_lengths[1], d->cu_k, offsets)))
        return false;
    if (d->seqused_k && !upload(t, &t->device_lengths[2], d->used_k, count * sizeof(int32_t))) return false;
    if (d->paged && !upload(t, &t->device_lengths[3], d->table, (size_t)table_entries(d) * sizeof(int32_t)))
        return false;
    if (d->args.dropout_state && !upload(t, &t->device_state, d->state, sizeof d->state)) return false;
    for (int i = 0; i < 3; i++)
        if (d->descaled[i] && !upload(t, &t->device_descale[i], t->descale[i],
                                      (size_t)(d->args.batch * d->args.num_heads_kv) * sizeof(float)))
            return false;
    if (!call(t, "copy", grads_upload(&t->grads, t->context))) return false;
    return upload(t, &t->device_lse, t->lse, row_bytes) && upload(t, &t->device_dlse, t->dlse, row_bytes) &&
           upload_workspace(t);
}

static void release(trial *t) {
    for (int i = 0; i < NUM_TENSORS; i++) {
        free(t->host[i]);
        free(t->again[i]);
        free(t->exact[i]);
        free(t->eager[i]);
        fk_device_free(t->context, t->device[i]);
    }
    for (size_t i = 0; i < t->num_arrays; i++) {
        free(t->array_host[i]);
        fk_device_free(t->context, t->array_device[i]);
    }
    fk_device_free(t->context, t->device_lse);
    fk_device_free(t->context, t->device_dlse);
    fk_device_free(t->context, t->workspace);
    for (int i = 0; i < 4; i++)
        fk_device_free(t->context, t->device_lengths[i]);
    fk_device_free(t->context, t->device_state);
    for (int i = 0; i < 3; i++) {
        fk_device_free(t->context, t->device_descale[i]);
        free(t->descale[i]);
    }
    free(t->lse);
    free(t->dlse);
    free(t->exact_lse);
    grads_free(&t->grads, t->context);
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

static void *device_tensor(const trial *t, int tensor) {
    return element_at(t->device[tensor], dtype_of(t->d, tensor), t->d->tensor[tensor].offset);
}

static bool execute(trial *t, void *const *results) {
    const drawn *d = t->d;
    fk_args args = d->args;
    args.q = device_tensor(t, Q);
    args.k = device_tensor(t, K);
    args.v = device_tensor(t, V);
    args.o = device_tensor(t, O);
    args.lse = d->backward || d->wants_lse ? t->device_lse : NULL;
    args.cu_seqlens_q = t->device_lengths[0];
    args.cu_seqlens_k = t->device_lengths[1];
    args.seqused_k = t->device_lengths[2];
    args.page_table = t->device_lengths[3];
    args.dropout_state = t->device_state;
    point_descales(t, t->device_descale, &args);
    if (d->backward) {
        args.dout = device_tensor(t, DOUT);
        args.dq = device_tensor(t, DQ);
        args.dk = device_tensor(t, DK);
        args.dv = device_tensor(t, DV);
        args.dlse = d->wants_dlse ? t->device_dlse : NULL;
    }
    for (size_t i = 0; i < t->num_arrays; i++) {
        args.array[i] = t->array[i];
        args.array[i].data =
            (char *)t->array_device[i] + ((const char *)t->array[i].data - (const char *)t->array_host[i]);
    }
    grads_point(&t->grads, true, &args);
    if (!call(t, "execute", fk_execute(t->kernel, &args, t->workspace, t->workspace_bytes, NULL)) ||
        !call(t, "synchronize", fk_synchronize(t->context, NULL)))
        return false;
    for (int i = 0; i < num_tensors(d); i++)
        if (is_result(d, i) &&
            !call(t, "copy", fk_copy_from_device(t->context, results[i], t->device[i], tensor_bytes(d, i))))
            return false;
    if (!call(t, "copy", grads_download(&t->grads, t->context, results == t->again))) return false;
    return call(t, "copy", fk_copy_from_device(t->context, t->lse, t->device_lse, lse_count(d) * sizeof(float)));
}

/* ---- verdict ------------------------------------------------------------------------------------------ */

typedef struct errors {
    double largest, sum_of_squares;
} errors;

static void add_error(errors *e, double difference) {
    if (fabs(difference) > e->largest) e->largest = fabs(difference);
    e->sum_of_squares += difference * difference;
}

static double largest_norm(const trial *t, int tensor) {
    const layout *l = &t->d->tensor[tensor];
    double largest = 0;
    for (int64_t b = 0; b < l->size[0]; b++)
        for (int64_t h = 0; h < l->size[2]; h++)
            for (int64_t s = 0; s < l->size[1]; s++) {
                const int64_t row = row_at(l, b, s, h);
                double square = 0;
                for (int64_t i = 0; i < l->dim; i++)
                    square += pow(element_get(t->host[tensor], t->d->dtype, row + i), 2);
                largest = fmax(largest, sqrt(square));
            }
    return largest;
}

/* Tensor cores add products of 8 bits with some 13 bits, of the largest number at hand, once for each 32 of the head
 * dim; the emulator does not. */
static double rough_scores(const trial *t) {
    const drawn *d = t->d;
    double scale = d->args.softmax_scale > 0 ? (double)d->args.softmax_scale : 1 / sqrt((double)d->tensor[Q].dim);
    if (d->dtype != FK_E4M3 || fk_context_is_emulator(t->context)) return 0;
    for (int tensor = Q; tensor <= K; tensor++) {
        float most = d->descaled[tensor] ? 0 : 1;
        for (int64_t i = 0; d->descaled[tensor] && i < d->args.batch * d->args.num_heads_kv; i++)
            most = fmaxf(most, t->descale[tensor][i]);
        scale *= (double)most * largest_norm(t, tensor);
    }
    return 0x1p-13 * (double)(d->tensor[Q].dim + 31) / 32 * 2 * scale;
}

static bool check_lse(trial *t) {
    const double rough = rough_scores(t);
    const size_t heads = (size_t)t->d->args.num_heads_q, rows = (size_t)t->d->tensor[Q].size[1];
    for (size_t i = 0; i < lse_count(t->d); i++) {
        if (!row_exists(t->d, Q, (int64_t)(i / rows / heads), (int64_t)(i % rows), false)) {
            if (isnan(t->lse[i])) continue;
            return complain(t, "lse[%zu, %zu] belongs to no sequence and was written", i / rows, i % rows);
        }
        const double exact = t->exact_lse[i], off = fabs((double)t->lse[i] - exact);
        const bool right = isinf(exact) ? (double)t->lse[i] == exact : off <= 1e-3 + 1e-5 * fabs(exact) + rough;
        if (!right)
            return complain(t, "lse[%zu, %zu, %zu] is %g, not %g", i / rows / heads, i / rows % heads, i % rows,
                            (double)t->lse[i], exact);
    }
    return true;
}

/* dS = P * (dP - delta) is a difference of numbers up to |dout| |v|, which may cancel altogether; what float32 loses
 * there is no error of the kernel's. */
static double cancelled(const trial *t, int tensor) {
    if (tensor != DQ && tensor != DK) return 0;
    const double scale =
        t->d->args.softmax_scale > 0 ? (double)t->d->args.softmax_scale : 1 / sqrt((double)t->d->tensor[Q].dim);
    const double kept = 1 - t->d->args.dropout_p;
    const double unit = t->d->dtype == FK_FP32 ? 0x1p-24 : 0x1p-22; /* eager loses it, too, if it rounds at all */
    return unit / kept * scale * largest_norm(t, DOUT) * largest_norm(t, V) * largest_norm(t, tensor == DQ ? K : Q);
}

/* What float32 scores of |s| about |lse| leave of P, relatively: half a unit in the last place of a score, which no
 * float32 score is without, though eager's few that count in a row may happen to be. The backward pass takes P from
 * lse, which is rounded once more; eager keeps P. */
static double score_rounding(const trial *t) {
    const drawn *d = t->d;
    double largest = 0;
    for (size_t i = 0; i < lse_count(d) && d->dtype == FK_FP32; i++)
        if (isfinite(t->exact_lse[i])) largest = fmax(largest, fabs(t->exact_lse[i]));
    return (d->backward ? 0x1p-23 : 0x1p-24) * largest;
}

/* Compares a result with float64 and with eager; leaves poison in its host memory where it has been compared. */
static bool check_values(trial *t, int tensor) {
    const drawn *d = t->d;
    const layout *l = &d->tensor[tensor];
    void *memory = t->host[tensor];
    const fk_dtype dtype = dtype_of(d, tensor);
    errors ours = {0, 0}, eager = {0, 0}, exact = {0, 0};
    int64_t worst[4] = {0, 0, 0, 0}, index = 0;
    for (int64_t b = 0; b < l->size[0]; b++)
        for (int64_t h = 0; h < l->size[2]; h++)
            for (int64_t s = 0; s < l->size[1]; s++) {
                const bool unseen =
                    (tensor == O || tensor == DQ) && isinf(t->exact_lse[(b * l->size[2] + h) * l->size[1] + s]);
                const int64_t row = row_at(l, b, s, h);
                if (!row_exists(d, tensor, b, s, false)) {
                    index += l->dim;
                    continue; /* and still poison, as padding is */
                }
                for (int64_t i = 0; i < l->dim; i++, index++) {
                    const double value = element_get(memory, dtype, row + i), want = t->exact[tensor][index];
                    if (isnan(value) || (unseen && value != 0))
                        return complain(t, "%s[%lld, %lld, %lld, %lld] is %g, not %g%s", tensor_name[tensor],
                                        (long long)b, (long long)s, (long long)h, (long long)i, value, want,
                                        unseen ? " (no key is seen)" : "");
                    if (fabs(value - want) > ours.largest) worst[0] = b, worst[1] = s, worst[2] = h, worst[3] = i;
                    add_error(&ours, value - want);
                    add_error(&eager, t->eager[tensor][index] - want);
                    add_error(&exact, want);
                    element_poison(memory, dtype, row + i);
                }
            }
    /* Half a unit in the last place of the largest value; a third of that is the typical rounding error. */
    const double half_ulp = element_half_ulp(d->dtype), of_scores = score_rounding(t), lost = cancelled(t, tensor);
    const double floor_largest = (half_ulp + of_scores) * exact.largest + lost + 1e-30;
    const double floor_norm =
        (half_ulp / 3 + of_scores) * sqrt(exact.sum_of_squares) + lost / 3 * sqrt((double)value_count(l)) + 1e-30;
    const double by_largest = ours.largest / fmax(eager.largest, floor_largest);
    const double by_norm = sqrt(ours.sum_of_squares) / fmax(sqrt(eager.sum_of_squares), floor_norm);
    const double ratio = fmax(by_largest, by_norm);
    t->verdict->ratio = fmax(t->verdict->ratio, ratio);
    if (ratio <= 2) return true;
    return complain(t,
                    "error of %s is %.2f x eager's (largest: %.3g at [%lld, %lld, %lld, %lld], %.2f x; norm: %.2f x)",
                    tensor_name[tensor], ratio, ours.largest, (long long)worst[0], (long long)worst[1],
                    (long long)worst[2], (long long)worst[3], by_largest, by_norm);
}

/* After check_values, all of a result's memory must be poison. */
static bool check_padding(trial *t, int tensor) {
    for (int64_t i = 0; i < t->d->tensor[tensor].elements; i++)
        if (!element_is_poison(t->host[tensor], dtype_of(t->d, tensor), i))
            return complain(t, "element %lld of %s's memory is padding and was written",
                            (long long)(i - t->d->tensor[tensor].offset), tensor_name[tensor]);
    return true;
}

/* The sums of the backward pass have no order, unless one is asked for. */
static bool check_again(trial *t) {
    const drawn *d = t->d;
    if (d->backward ? !d->deterministic : d->seed % 4 != 0) return true;
    if (!execute(t, t->again)) return false;
    for (int i = 0; i < num_tensors(d); i++)
        if (is_result(d, i) && memcmp(t->again[i], t->host[i], tensor_bytes(d, i)))
            return complain(t, "%s of a second run differs", tensor_name[i]);
    return grads_equal_again(&t->grads, t->verdict->complaint, sizeof t->verdict->complaint);
}

static bool check_mask(trial *t) {
    fk_args args = t->d->args;
    char *complaint = t->verdict->complaint;
    if (!t->d->dropout || t->d->seed % 4 != 1) return true;
    args.dropout_state = t->device_state;
    const fk_status status =
        check_keep_mask(t->context, t->kernel, &t->problem, t->d, &args, complaint, sizeof t->verdict->complaint);
    return status == FK_CHECK_FAILED ? false : call(t, "keep mask", status);
}

static bool try_problem(trial *t) {
    const drawn *d = t->d;
    if (!find_kernel(t) || !allocate(t) || !refer(t) || !upload_all(t) || !execute(t, t->host)) return false;
    if (!check_again(t) || !check_mask(t)) return false;
    if (!d->backward && d->wants_lse && !check_lse(t)) return false;
    for (int i = 0; i < num_tensors(d); i++)
        if (is_result(d, i) && (!check_values(t, i) || !check_padding(t, i))) return false;
    if (!t->grads.bits) return true;
    const double lost = (0x1p-22 + score_rounding(t)) * largest_norm(t, DOUT) * largest_norm(t, V);
    return grads_check(&t->grads, &d->args, lost, &t->verdict->ratio, t->verdict->complaint,
                       sizeof t->verdict->complaint);
}

bool random_trial(fk_context *context, const drawn *d, verdict *out) {
    *out = (verdict){0};
    trial t = {.d = d, .context = context, .verdict = out};
    const bool passed = try_problem(&t);
    release(&t);
    return passed;
}
