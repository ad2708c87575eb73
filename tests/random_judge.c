/* What is right: results of a trial against float64, beside the error of an eager reference in the same dtype. */
#include "random_case.h"

#include "random_sequences.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

const char *const tensor_name[NUM_TENSORS] = {"q", "k", "v", "o", "dout", "dq", "dk", "dv"};

bool complain(trial *t, const char *format, ...) {
    va_list list;
    va_start(list, format);
    vsnprintf(t->verdict->complaint, sizeof t->verdict->complaint, format, list);
    va_end(list);
    return false;
}

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
                    square += pow(element_get(t->host[tensor], dtype_of(t->d, tensor), row + i), 2);
                largest = fmax(largest, sqrt(square));
            }
    return largest;
}

static double softmax_scale(const drawn *d) {
    return d->args.softmax_scale > 0 ? (double)d->args.softmax_scale : 1 / sqrt((double)d->tensor[Q].dim);
}

/* What scores may be off by: tensor cores add products of 8 bits with 13 bits of the largest number at hand, once for
 * each 32 of the head dim. */
static double rough_scores(const trial *t) {
    const drawn *d = t->d;
    double scale = softmax_scale(d);
    if (d->dtype != FK_E4M3) return 0;
    for (int tensor = Q; tensor <= K; tensor++) {
        float most = d->descaled[tensor] ? 0 : 1;
        for (int64_t i = 0; d->descaled[tensor] && i < d->args.batch * d->args.num_heads_kv; i++)
            most = fmaxf(most, t->descale[tensor][i]);
        scale *= (double)most * largest_norm(t, tensor);
    }
    return 0x1p-13 * (double)(d->tensor[Q].dim + 31) / 32 * 2 * scale;
}

/* Of fp32 lse is judged as o is. What is no error: half a unit in the last place of the largest, of the logarithm, and
 * of the products that a score sums, though eager's few may happen to lose less. */
static bool check_single_lse(trial *t) {
    errors ours = {0, 0}, eager = {0, 0};
    double largest = 0;
    for (size_t i = 0; i < lse_count(t->d); i++) {
        if (!isfinite(t->exact_lse[i])) continue;
        add_error(&ours, (double)t->lse[i] - t->exact_lse[i]);
        add_error(&eager, t->eager_lse[i] - t->exact_lse[i]);
        largest = fmax(largest, fabs(t->exact_lse[i]));
    }
    const double products = softmax_scale(t->d) * largest_norm(t, Q) * largest_norm(t, K);
    const double ratio = ours.largest / fmax(eager.largest, 0x1p-24 * (largest + products + 2));
    t->verdict->ratio = fmax(t->verdict->ratio, ratio);
    return ratio <= 2 || complain(t, "error of lse is %.2f x eager's (%.3g)", ratio, ours.largest);
}

/* With `fast` row sums of e4m3 are those of weights that are off by up to 8 %, and by all of them below 2^-13 of the
 * largest; of bf16 a row's first tile has rounded ones, and each element of a query is off by half a unit. */
static double rough_sums(const trial *t) {
    if (!t->d->fast) return 0;
    if (t->d->dtype == FK_E4M3) return 0.09 + 0x1p-13 * (double)t->d->tensor[K].size[1];
    return 0x1p-8 + 0x1p-9 * softmax_scale(t->d) * largest_norm(t, Q) * largest_norm(t, K);
}

bool check_lse(trial *t) {
    const double rough = rough_scores(t) + rough_sums(t);
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
    return t->d->dtype != FK_FP32 || check_single_lse(t);
}

/* dS = P * (dP - delta) is a difference of numbers up to |dout| |v|, which may cancel altogether; what float32 loses
 * there is no error of the kernel's. */
static double cancelled(const trial *t, int tensor) {
    if (tensor != DQ && tensor != DK) return 0;
    const double scale = softmax_scale(t->d);
    const double kept = 1 - t->d->args.dropout_p;
    const double unit = t->d->dtype == FK_FP32 ? 0x1p-24 : 0x1p-22; /* eager loses it, too, if it rounds at all */
    return unit / kept * scale * largest_norm(t, DOUT) * largest_norm(t, V) * largest_norm(t, tensor == DQ ? K : Q);
}

/* What scores of |s| about |lse| leave of P, relatively. Half a unit in the last place of a float32 score, which none
 * is without, though eager's few that count in a row may happen to be, or eager, in fp16, has a row of -inf for scores
 * of -10^8; and of float32 in the backward pass half a unit of lse, which eager, that keeps P, does not need. Nor does
 * it need there, of 16 bits, that a score comes out the same again: of each sum of eight products tensor cores may cut
 * off half a unit. Of e4m3 what tensor cores cut off and eager, in float32, does not: up to 33 numbers at once lose
 * half of 2^-13 of the largest each, some three such units of the sum of 32 products, and eight of up to eight of them.
 */
static double score_rounding(const trial *t) {
    const drawn *d = t->d;
    const double again = 0x1p-24 * (d->backward ? (double)d->tensor[Q].dim / 8 : 1);
    const double of_bf16 = d->fast ? 0x1p-9 : again; /* each element of a query, rounded once more */
    const double unit = d->dtype == FK_FP32 ? 0x1p-24 : d->dtype == FK_E4M3 ? 8 * 0x1p-13 : of_bf16;
    double largest = 0;
    for (size_t i = 0; i < lse_count(d) && unit > 0; i++)
        if (isfinite(t->exact_lse[i])) largest = fmax(largest, fabs(t->exact_lse[i]));
    return unit * largest;
}

bool check_values(trial *t, int tensor) {
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
                    if (d->dtype == FK_FP16 && !isfinite(t->eager[tensor][index])) { /* dP or dS is none of fp16 */
                        element_poison(memory, dtype, row + i);
                        continue;
                    }
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
    const double half_ulp = element_half_ulp(d->dtype) * (d->fast && d->dtype == FK_E4M3 ? 1.5 : 1),
                 of_scores = score_rounding(t), lost = cancelled(t, tensor);
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

bool check_padding(trial *t, int tensor) {
    for (int64_t i = 0; i < t->d->tensor[tensor].elements; i++)
        if (!element_is_poison(t->host[tensor], dtype_of(t->d, tensor), i))
            return complain(t, "element %lld of %s's memory is padding and was written",
                            (long long)(i - t->d->tensor[tensor].offset), tensor_name[tensor]);
    return true;
}

/* The sums of the backward pass have no order, unless one is asked for. */
bool check_array_grads(trial *t) {
    if (!t->grads.bits) return true;
    const double lost = (0x1p-22 + score_rounding(t)) * largest_norm(t, DOUT) * largest_norm(t, V);
    return grads_check(&t->grads, &t->d->args, lost, &t->verdict->ratio, t->verdict->complaint,
                       sizeof t->verdict->complaint);
}
