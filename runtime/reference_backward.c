/* The gradients by the definition, on the CPU. With P = softmax(S) and dP = dO V^T, a row of queries at a time:
 *
 *     delta = sum(P * dP) - dlse      dS = P * (dP - delta) * (derivative of the score terms)
 *     dV += P^T dO      dQ = scale dS K      dK += scale dS^T Q
 *
 * With dropout, dP and the P of dV are what it leaves of them. sum(P * dP) is rowsum(dO * O), of the o that is given,
 * if one is: that is rounded, and a kernel has no other. EAGER rounds P, dP, dS and the three results to the problem's
 * dtype, and sums in float32. A thread takes a kv head with all query heads that read it, so that no two threads add to
 * one sum. */
#include "reference.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Sums of one task, and a row's dP. */
typedef struct sums {
    double *dk, *dv, *dp; /* [seqlen_k, head_dim], [seqlen_k, head_dim_v], [seqlen_k] */
} sums;

static void add_scaled(bool eager, double *sum, double factor, const float *x, int n) {
    if (eager)
        for (int i = 0; i < n; i++)
            sum[i] = (double)((float)sum[i] + (float)factor * x[i]);
    else
        for (int i = 0; i < n; i++)
            sum[i] += factor * (double)x[i];
}

/* dP of the row into s->dp. Returns sum(P * dP). */
static double row_dp(const fk_walker *t, int64_t q, const fk_walk_row *row, const float *dout, const sums *s) {
    const fk_walk *w = t->walk;
    const int dv = w->p->head_dim_v;
    double total = 0;
    float total32 = 0;
    for (int64_t n = row->begin; n < row->end; n++) {
        const float *v = t->v + n * dv;
        s->dp[n] = w->eager ? (double)fk_walk_rounded(w->p, fk_dot_f32(dout, v, dv)) : fk_dot_f64(dout, v, dv);
        s->dp[n] = fk_walker_drop(t, q, n, s->dp[n]);
        total += t->s[n] * s->dp[n];
        total32 += (float)t->s[n] * (float)s->dp[n];
    }
    return w->eager ? (double)total32 : total;
}

static void backward_row(fk_walker *t, int64_t q, const sums *s, double *const *grad, double *dq) {
    const fk_walk *w = t->walk;
    const fk_args *a = w->a;
    const int d = w->p->head_dim, dv = w->p->head_dim_v;
    float dout[FK_MAX_HEAD_DIM];
    memset(dq, 0, sizeof(double) * (size_t)d);
    const fk_walk_row row = fk_walker_softmax(t, q);
    if (row.sum == 0) return;
    for (int64_t n = row.begin; n < row.end && !w->eager; n++)
        t->s[n] /= row.sum;
    const fk_sequence *sequence = &t->sequence;
    fk_walk_decode(w->p->dtype, a->dout, a->dout_stride, sequence->batch, sequence->q_first + q, t->h, dv, dout);
    double delta = row_dp(t, q, &row, dout, s);
    if (a->o && !w->eager) {
        float o[FK_MAX_HEAD_DIM];
        fk_walk_decode(w->p->dtype, a->o, a->o_stride, sequence->batch, sequence->q_first + q, t->h, dv, o);
        delta = fk_dot_f64(dout, o, dv);
    }
    if (a->dlse) delta -= (double)a->dlse[fk_lse_row(w->p, a, sequence, t->h) + q];
    if (grad) fk_walker_add_sinks(t, &row, delta, grad);
    for (int64_t n = row.begin; n < row.end; n++) {
        const double p = t->s[n];
        if (p == 0) continue; /* masked, mostly */
        double ds = w->eager ? (double)fk_walk_rounded(w->p, (float)p * ((float)s->dp[n] - (float)delta))
                             : p * (s->dp[n] - delta);
        if (grad) fk_walker_add_pair(t, n, ds, grad);
        if (w->terms.score.num_terms > 0) {
            ds *= t->ds[n];
            if (w->eager) ds = (double)fk_walk_rounded(w->p, (float)ds);
        }
        add_scaled(w->eager, s->dv + n * dv, fk_walker_drop(t, q, n, p), dout, dv);
        add_scaled(w->eager, s->dk + n * d, ds, t->q, d);
        add_scaled(w->eager, dq, ds, t->k + n * d, d);
    }
}

/* A finished sum as a result. */
static void finish(const fk_walk *w, double *out, const double *sum, double scale, int64_t count) {
    for (int64_t i = 0; i < count; i++)
        out[i] = w->eager ? (double)fk_walk_rounded(w->p, (float)sum[i] * (float)scale) : sum[i] * scale;
}

static void backward_task(fk_walker *t, int64_t index, void *user) {
    const fk_gradients *out = user;
    const fk_walk *w = t->walk;
    const fk_args *a = w->a;
    const int64_t d = w->p->head_dim, dv = w->p->head_dim_v;
    const int64_t b = index / a->num_heads_kv, kv_head = index % a->num_heads_kv;
    const int64_t group = a->num_heads_q / a->num_heads_kv;
    const fk_sequence sequence = fk_sequence_at(w->p, a, b);
    const int64_t keys = sequence.num_keys; /* sums of those that are not used stay 0 */
    const int64_t first_key = w->p->packed ? kv_head * a->total_k + sequence.k_first : index * a->seqlen_k;
    double dq[FK_MAX_HEAD_DIM];
    double *memory = calloc((size_t)(keys * (d + dv + 1)), sizeof *memory);
    if (!memory && keys > 0) {
        t->out_of_memory = true;
        return;
    }
    const sums s = {memory, memory + keys * d, memory + keys * (d + dv)};
    for (int64_t h = kv_head * group; h < (kv_head + 1) * group; h++) {
        fk_walker_enter(t, b, h);
        for (int64_t q = 0; q < sequence.seqlen_q; q++) {
            backward_row(t, q, &s, out->grad, dq);
            if (out->dq) finish(w, out->dq + (fk_lse_row(w->p, a, &sequence, h) + q) * d, dq, w->scale, d);
        }
    }
    if (out->dk) finish(w, out->dk + first_key * d, s.dk, w->scale, keys * d);
    if (out->dv) finish(w, out->dv + first_key * dv, s.dv, 1, keys * dv);
    free(memory);
}

fk_status fk_reference_gradients(const fk_problem *canonical, const fk_args *args, fk_reference_kind kind,
                                 const fk_gradients *out) {
    fk_error err;
    if (kind != FK_REFERENCE_F64 && kind != FK_REFERENCE_EAGER)
        return fk_refuse(FK_BAD_ARGUMENT, "kind is %d; it must be FK_REFERENCE_F64 (0) or FK_REFERENCE_EAGER (1)",
                         (int)kind);
    const fk_status status = fk_walk_run(canonical, args, kind == FK_REFERENCE_EAGER, args->batch * args->num_heads_kv,
                                         backward_task, (void *)out, &err);
    return status ? fk_report(&err) : FK_OK;
}

fk_status fk_reference_backward(const fk_problem *problem, const fk_args *args, fk_reference_kind kind, double *dq,
                                double *dk, double *dv) {
    fk_error err;
    fk_problem p;
    if (!problem || !args) return fk_refuse(FK_BAD_ARGUMENT, "%s is null", problem ? "args" : "problem");
    fk_status status = fk_problem_normalise(problem, &p, &err);
    p.op = FK_BACKWARD; /* of a forward problem too */
    if (!status) status = fk_walk_check(&p, args, &err);
    if (status) return fk_report(&err);
    return fk_reference_gradients(&p, args, kind, &(fk_gradients){dq, dk, dv, NULL});
}
