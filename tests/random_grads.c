#include "random_grads.h"
#include "random_terms.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static bool is_asked(const grads *g, size_t i) {
    return g->bits >> i & 1;
}

/* Does a score term read it, by its expression or its file? */
static bool is_read(const fk_problem *p, const char *name) {
    for (int i = 0; i < p->num_scores; i++) {
        fk_array_decl decl[FK_MAX_ARRAYS];
        fk_problem alone = *p;
        char element[40];
        size_t count = 0;
        snprintf(element, sizeof element, "%.31s[", name);
        if (strstr(p->score[i].expr, element)) return true;
        if (p->score[i].expr[0]) continue;
        alone.score[0] = p->score[i];
        alone.num_scores = 1;
        alone.num_masks = alone.num_arrays = 0;
        if (fk_problem_arrays(&alone, decl, &count)) continue;
        for (size_t j = 0; j < count; j++)
            if (strcmp(decl[j].name, name) == 0) return true;
    }
    return false;
}

void draw_grads(rng *kernel, char *spelling) {
    fk_problem p;
    fk_array_decl decl[FK_MAX_ARRAYS];
    size_t count = 0;
    if (fk_problem_parse(spelling, &p) || fk_problem_arrays(&p, decl, &count)) return;
    for (size_t i = 0; i < count; i++) {
        const size_t used = strlen(spelling);
        if (decl[i].type == FK_FLOAT32 && is_read(&p, decl[i].name) && rng_chance(kernel, 70))
            snprintf(spelling + used, FK_MAX_SPELLING - used, " grad=%s", decl[i].name);
    }
}

static int64_t size_of(const fk_array *array, const fk_args *a, const fk_array_decl *decl, int d) {
    switch (decl->dim[d]) {
    case FK_DIM_BATCH:
        return a->batch;
    case FK_DIM_HEADS_Q:
        return a->num_heads_q;
    case FK_DIM_SEQLEN_Q:
        return a->seqlen_q;
    case FK_DIM_SEQLEN_K:
        return a->seqlen_k;
    default:
        return array->size[d];
    }
}

/* Some dimensions are summed over, some padded, and any may be the innermost. */
static bool allocate(rng *r, const fk_args *args, size_t i, grads *g) {
    const fk_array_decl *decl = &g->decl[i];
    const int first = (int)rng_range(r, 0, decl->rank - 1);
    int64_t extent = 1;
    for (int d = 0; d < FK_MAX_RANK; d++)
        g->size[i][d] = d < decl->rank ? size_of(&args->array[i], args, decl, d) : 1;
    for (int j = 0; j < decl->rank; j++) {
        const int d = (first + decl->rank - j) % decl->rank;
        if (rng_chance(r, 25) || extent * g->size[i][d] > MAX_ELEMENTS) continue;
        g->stride[i][d] = extent;
        extent *= g->size[i][d];
        if (rng_chance(r, 20)) extent += rng_range(r, 1, 3);
    }
    g->offset[i] = rng_chance(r, 30) ? rng_range(r, 1, 5) : 0;
    g->elements[i] = g->offset[i] + extent;
    const size_t count = (size_t)g->elements[i];
    g->host[i] = malloc(count * sizeof(float));
    g->again[i] = malloc(count * sizeof(float));
    g->exact[i] = calloc(count, sizeof(double));
    g->eager[i] = calloc(count, sizeof(double));
    if (!g->host[i] || !g->again[i] || !g->exact[i] || !g->eager[i]) return false;
    memset(g->host[i], 0xff, count * sizeof(float));
    return true;
}

bool grads_allocate(rng *r, const fk_problem *problem, const fk_args *args, grads *g) {
    bool good = fk_problem_arrays(problem, g->decl, &g->count) == FK_OK;
    g->bits = (uint32_t)problem->grad;
    for (size_t i = 0; i < g->count && good; i++)
        if (is_asked(g, i)) good = allocate(r, args, i, g);
    return good;
}

fk_status grads_upload(grads *g, fk_context *context) {
    fk_status status = FK_OK;
    for (size_t i = 0; i < g->count && !status; i++) {
        if (!is_asked(g, i)) continue;
        const size_t bytes = (size_t)g->elements[i] * sizeof(float);
        status = fk_device_malloc(context, bytes, &g->device[i]);
        if (!status) status = fk_copy_to_device(context, g->device[i], g->host[i], bytes);
    }
    return status;
}

void grads_point(const grads *g, bool device, fk_args *args) {
    for (size_t i = 0; i < g->count; i++) {
        if (!is_asked(g, i)) continue;
        args->array_grad[i].data = device ? (float *)g->device[i] + g->offset[i] : NULL;
        memcpy(args->array_grad[i].stride, g->stride[i], sizeof g->stride[i]);
    }
}

fk_status grads_refer(grads *g, const fk_problem *problem, const fk_args *args) {
    double *exact[FK_MAX_ARRAYS] = {NULL}, *eager[FK_MAX_ARRAYS] = {NULL};
    fk_args placed = *args;
    if (!g->bits) return FK_OK;
    grads_point(g, false, &placed);
    for (size_t i = 0; i < g->count; i++) {
        if (!is_asked(g, i)) continue;
        exact[i] = g->exact[i] + g->offset[i];
        eager[i] = g->eager[i] + g->offset[i];
    }
    const fk_status status = fk_reference_arrays(problem, &placed, FK_REFERENCE_F64, exact);
    return status ? status : fk_reference_arrays(problem, &placed, FK_REFERENCE_EAGER, eager);
}

fk_status grads_download(const grads *g, fk_context *context, bool again) {
    fk_status status = FK_OK;
    for (size_t i = 0; i < g->count && !status; i++)
        if (is_asked(g, i))
            status = fk_copy_from_device(context, again ? g->again[i] : g->host[i], g->device[i],
                                         (size_t)g->elements[i] * sizeof(float));
    return status;
}

void grads_free(grads *g, fk_context *context) {
    for (size_t i = 0; i < FK_MAX_ARRAYS; i++) {
        free(g->host[i]);
        free(g->again[i]);
        free(g->exact[i]);
        free(g->eager[i]);
        fk_device_free(context, g->device[i]);
    }
}

/* ---- verdict ------------------------------------------------------------------------------------------ */

/* Marks the elements of a gradient. */
static void mark(const grads *g, size_t i, uint8_t *is_element) {
    const int64_t *size = g->size[i], *stride = g->stride[i];
    for (int64_t a = 0; a < (stride[0] ? size[0] : 1); a++)
        for (int64_t b = 0; b < (stride[1] ? size[1] : 1); b++)
            for (int64_t c = 0; c < (stride[2] ? size[2] : 1); c++)
                for (int64_t e = 0; e < (stride[3] ? size[3] : 1); e++)
                    is_element[g->offset[i] + a * stride[0] + b * stride[1] + c * stride[2] + e * stride[3]] = 1;
}

typedef struct error_sums {
    double largest, square;
    int64_t worst;
} error_sums;

static void add(error_sums *e, double difference, int64_t at) {
    if (fabs(difference) > e->largest) e->largest = fabs(difference), e->worst = at;
    e->square += difference * difference;
}

/* dS of a pair may be all rounding; a gradient sums it over pairs, times a derivative. */
static double lost_in(const grads *g, size_t i, const fk_args *a, double lost) {
    double elements = 1;
    for (int d = 0; d < g->decl[i].rank; d++)
        if (g->stride[i][d]) elements *= (double)g->size[i][d];
    const double rows = (double)(a->batch * a->num_heads_q * a->seqlen_q) / elements;
    const double derivative = strcmp(g->decl[i].name, "slope") == 0 ? (double)(a->seqlen_q + a->seqlen_k) : 4;
    return lost * derivative * sqrt(fmax(rows, 1));
}

static bool check_one(const grads *g, size_t i, double lost, double *ratio, char *complaint, size_t size) {
    uint8_t *is_element = calloc((size_t)g->elements[i], 1);
    error_sums ours = {0}, eager = {0}, exact = {0};
    int64_t count = 0, at = 0;
    if (!is_element) return snprintf(complaint, size, "no memory"), false;
    mark(g, i, is_element);
    for (; at < g->elements[i]; at++) {
        const double value = (double)g->host[i][at], want = g->exact[i][at];
        if (is_element[at] ? isnan(value) : !isnan(value)) break;
        if (!is_element[at]) continue;
        add(&ours, value - want, at);
        add(&eager, g->eager[i][at] - want, at);
        add(&exact, want, at);
        count++;
    }
    const bool stray = at < g->elements[i] && !is_element[at];
    free(is_element);
    if (at < g->elements[i]) {
        snprintf(complaint, size, "gradient of %s, element %lld: %s", g->decl[i].name, (long long)(at - g->offset[i]),
                 stray ? "padding was written" : "not a number");
        return false;
    }
    const double floor_largest = 0x1p-14 * exact.largest + lost + 1e-30;
    const double floor_norm = 0x1p-14 * sqrt(exact.square) + lost * sqrt((double)count) + 1e-30;
    const double this_ratio = fmax(ours.largest / fmax(eager.largest, floor_largest),
                                   sqrt(ours.square) / fmax(sqrt(eager.square), floor_norm));
    *ratio = fmax(*ratio, this_ratio);
    if (this_ratio <= 2) return true;
    snprintf(complaint, size,
             "error of the gradient of %s is %.2f x eager's (%.3g of %.3g at element %lld, eager %.3g)",
             g->decl[i].name, this_ratio, ours.largest, exact.largest, (long long)(ours.worst - g->offset[i]),
             eager.largest);
    return false;
}

bool grads_check(const grads *g, const fk_args *args, double lost, double *ratio, char *complaint, size_t size) {
    for (size_t i = 0; i < g->count; i++)
        if (is_asked(g, i) && !check_one(g, i, lost_in(g, i, args, lost), ratio, complaint, size)) return false;
    return true;
}

bool grads_equal_again(const grads *g, char *complaint, size_t size) {
    for (size_t i = 0; i < g->count; i++) {
        if (!is_asked(g, i) || !memcmp(g->host[i], g->again[i], (size_t)g->elements[i] * sizeof(float))) continue;
        snprintf(complaint, size, "the gradient of %s of a second run differs", g->decl[i].name);
        return false;
    }
    return true;
}
