/* Gradients of declared arrays by the definition: from dS of a pair of query and key, the gradient of the last term's
 * score, back through the terms, each of which says how its value depends on the elements that it reads. A sink is a
 * column whose dP is 0. Threads add to one result, atomically. */
#include "reference.h"

#include <math.h>
#include <string.h>

static void add(double *to, double x) {
    uint64_t old, sum;
    __atomic_load((uint64_t *)(void *)to, &old, __ATOMIC_RELAXED);
    do {
        double value;
        memcpy(&value, &old, sizeof value);
        value += x;
        memcpy(&sum, &value, sizeof sum);
    } while (!__atomic_compare_exchange((uint64_t *)(void *)to, &old, &sum, true, __ATOMIC_RELAXED, __ATOMIC_RELAXED));
}

/* The gradient of a term's value reaches the elements that it reads. */
static void add_reads(const fk_walker *t, const fk_expr_env *env, const fk_score_term *term, double g,
                      double *const grad[FK_MAX_ARRAYS]) {
    const fk_walk *w = t->walk;
    for (int i = 0; i < term->num_reads; i++) {
        const fk_score_read *read = &term->read[i];
        if (!grad[read->array]) continue;
        int64_t offset = 0;
        for (int d = 0; fk_expr_index(read->element, d); d++) {
            const int64_t last = fk_array_size(&w->terms.arrays, read->array, w->a, d) - 1;
            const int64_t index = (int64_t)fk_expr_eval(fk_expr_index(read->element, d), env);
            offset += (index < 0 ? 0 : index > last ? last : index) * w->a->array_grad[read->array].stride[d];
        }
        add(grad[read->array] + offset, g * fk_expr_eval(read->derivative, env));
    }
}

void fk_walker_add_pair(fk_walker *t, int64_t n, double ds, double *const grad[FK_MAX_ARRAYS]) {
    const fk_problem_score *score = &t->walk->terms.score;
    const fk_expr_env env = fk_walker_environment(t);
    double s[FK_MAX_SCORES + 1], g = ds; /* the score before each term */
    t->values[FK_VAR_K] = (double)n;
    s[0] = fk_walker_score(t, n);
    for (int i = 0; i + 1 < score->num_terms; i++) {
        t->values[FK_VAR_S] = s[i];
        s[i + 1] = fk_expr_eval(score->term[i].value, &env);
        if (t->walk->eager) s[i + 1] = (double)fk_walk_rounded(t->walk->p, (float)s[i + 1]);
    }
    for (int i = score->num_terms - 1; i >= 0; i--) {
        t->values[FK_VAR_S] = s[i];
        add_reads(t, &env, &score->term[i], g, grad);
        g *= fk_expr_eval(score->term[i].ds, &env);
    }
}

void fk_walker_add_sinks(fk_walker *t, const fk_walk_row *row, double delta, double *const grad[FK_MAX_ARRAYS]) {
    const fk_problem_score *score = &t->walk->terms.score;
    const fk_expr_env env = fk_walker_environment(t);
    for (int i = 0; i < score->num_sinks; i++) {
        const double weight = exp(fk_expr_eval(score->sink[i].value, &env) - row->max) / row->sum;
        const double p = t->walk->eager ? (double)fk_walk_rounded(t->walk->p, (float)weight) : weight;
        add_reads(t, &env, &score->sink[i], -p * delta, grad);
    }
}

static void clear(const fk_problem *p, const fk_array_list *arrays, const fk_args *a,
                  double *const grad[FK_MAX_ARRAYS]) {
    for (int i = 0; i < arrays->count; i++) {
        int64_t size[FK_MAX_RANK] = {1, 1, 1, 1};
        const int64_t *stride = a->array_grad[i].stride;
        if (!(p->grad >> i & 1) || !grad[i]) continue;
        for (int d = 0; d < arrays->decl[i].rank; d++)
            size[d] = stride[d] ? fk_array_size(arrays, i, a, d) : 1;
        for (int64_t row = 0; row < size[0] * size[1] * size[2]; row++) {
            const int64_t c = row % size[2], b = row / size[2] % size[1], top = row / size[2] / size[1];
            double *at =
                grad[i] + top * stride[0] + (size[1] > 1 ? b * stride[1] : 0) + (size[2] > 1 ? c * stride[2] : 0);
            for (int64_t e = 0; e < size[3]; e++)
                at[size[3] > 1 ? e * stride[3] : 0] = 0;
        }
    }
}

fk_status fk_reference_arrays(const fk_problem *problem, const fk_args *args, fk_reference_kind kind,
                              double *const grad[FK_MAX_ARRAYS]) {
    fk_error err;
    fk_problem p;
    fk_array_list arrays;
    if (!problem || !args || !grad)
        return fk_refuse(FK_BAD_ARGUMENT, "%s is null", !problem ? "problem" : !args ? "args" : "grad");
    fk_status status = fk_problem_normalise(problem, &p, &err);
    if (!status && (p.op != FK_BACKWARD || !p.grad))
        status =
            fk_fail(&err, FK_BAD_ARGUMENT, "the problem's grad is 0; it must name arrays whose gradients to compute");
    if (!status) status = fk_problem_list_arrays(&p, &arrays, &err);
    if (!status) status = fk_walk_check(&p, args, &err);
    for (int i = 0; i < FK_MAX_ARRAYS && !status; i++) {
        uintptr_t begin, end;
        fk_args placed = *args;
        placed.array_grad[i].data = (float *)(void *)grad[i];
        if ((p.grad >> i & 1) && grad[i]) status = fk_array_grad_check(&arrays, i, &placed, &begin, &end, &err);
    }
    if (status) return fk_report(&err);
    clear(&p, &arrays, args, grad);
    return fk_reference_gradients(&p, args, kind, &(fk_gradients){.grad = grad});
}
