/* Attention by the definition, on the CPU: what every kernel is measured against.
 *
 * Two kinds share one walk. F64 computes everything in float64. EAGER rounds where an eager framework materialises a
 * tensor of the problem's dtype: S once, after scaling; P after a float32 softmax; O after a float32 sum. Of e4m3 it
 * keeps S in float32, rounds 2^5 exp(s - max) to e4m3, as kernels may, and O to bf16.
 * Threads take blocks of query rows of one head; rows do not depend on each other, so neither does the result. */
#include "reference.h"

#include "emulator/half.h"

#include <math.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define ROWS_PER_TASK 64
#define MAX_THREADS 64

/* ---- elements ----------------------------------------------------------------------------------------- */

float fk_walk_rounded(const fk_problem *p, float x) {
    if (p->dtype == FK_FP32 || p->dtype == FK_E4M3) return x;
    return p->dtype == FK_FP16 ? fk_fp16_to_float(fk_fp16_from_float(x)) : fk_bf16_to_float(fk_bf16_from_float(x));
}

void fk_walk_decode(int32_t dtype, const void *data, const int64_t stride[3], int64_t b, int64_t row, int64_t head,
                    int n, float *out) {
    const int64_t at = b * stride[0] + row * stride[1] + head * stride[2];
    const uint16_t *from = (const uint16_t *)data + at;
    if (dtype == FK_FP32) {
        memcpy(out, (const float *)data + at, sizeof(float) * (size_t)n);
        return;
    }
    const uint8_t *bytes = (const uint8_t *)data + at;
    for (int i = 0; i < n && dtype == FK_E4M3; i++)
        out[i] = fk_e4m3_to_float(bytes[i]);
    for (int i = 0; i < n && dtype != FK_E4M3; i++)
        out[i] = dtype == FK_FP16 ? fk_fp16_to_float(from[i]) : fk_bf16_to_float(from[i]);
}

double fk_dot_f64(const float *x, const float *y, int n) { /* the lanes let it vectorise */
    double lane[8] = {0};
    for (int i = 0; i < n; i += 8)
        for (int l = 0; l < 8; l++)
            lane[l] += (double)x[i + l] * (double)y[i + l];
    return ((lane[0] + lane[1]) + (lane[2] + lane[3])) + ((lane[4] + lane[5]) + (lane[6] + lane[7]));
}

float fk_dot_f32(const float *x, const float *y, int n) {
    float lane[8] = {0};
    for (int i = 0; i < n; i += 8)
        for (int l = 0; l < 8; l++)
            lane[l] += x[i + l] * y[i + l];
    return ((lane[0] + lane[1]) + (lane[2] + lane[3])) + ((lane[4] + lane[5]) + (lane[6] + lane[7]));
}

/* ---- the walk ----------------------------------------------------------------------------------------- */

static void load_head(fk_walker *t, int64_t kv_head) {
    const fk_problem *p = t->walk->p;
    const fk_args *a = t->walk->a;
    const int64_t head = t->b * a->num_heads_kv + kv_head;
    if (t->kv_head == head) return;
    t->kv_head = head;
    const fk_sequence *s = &t->sequence;
    const int32_t dtype = fk_kv_dtype(p);
    const void *v = fk_args_v(p, a);
    const int64_t *v_stride = fk_args_v_stride(p, a);
    for (int64_t n = 0; n < s->seqlen_k; n++) {
        const fk_key_place at = fk_key_at(p, a, t->b, s, n);
        fk_walk_decode(dtype, a->k, a->k_stride, at.batch, at.row, kv_head, p->head_dim, t->k + n * p->head_dim);
        fk_walk_decode(dtype, v, v_stride, at.batch, at.row, kv_head, p->head_dim_v, t->v + n * p->head_dim_v);
    }
}

void fk_walker_enter(fk_walker *t, int64_t b, int64_t h) {
    const fk_walk *w = t->walk;
    const fk_args *a = w->a;
    double *values = t->values;
    t->b = b;
    t->h = h;
    t->sequence = fk_sequence_at(w->p, a, b);
    if (w->p->dropout) t->dropout = fk_dropout_of_head(a, b, h);
    const int64_t kv_head = h / (a->num_heads_q / a->num_heads_kv);
    load_head(t, kv_head);
    t->score_descale = fk_descale_at(a->q_descale, a->q_descale_stride, b, kv_head) *
                       fk_descale_at(a->k_descale, a->k_descale_stride, b, kv_head);
    t->value_descale = fk_descale_at(a->v_descale, a->v_descale_stride, b, kv_head);
    values[FK_VAR_K] = 0;
    values[FK_VAR_B] = (double)b;
    values[FK_VAR_H] = (double)h;
    const int64_t seqlen_q = t->sequence.seqlen_q, seqlen_k = t->sequence.seqlen_k;
    values[FK_VAR_SEQLEN_Q] = (double)seqlen_q;
    values[FK_VAR_SEQLEN_K] = (double)seqlen_k;
    values[FK_VAR_DIAG] = w->p->align == FK_TOP_LEFT ? 0 : (double)(seqlen_k - seqlen_q);
    const fk_problem_terms *terms = &w->terms;
    for (int i = 0; i < terms->mask.num_params; i++)
        values[FK_VAR_PARAM + i] = terms->mask.param[i].value;
    for (int i = 0; i < terms->score.num_params; i++)
        values[FK_VAR_PARAM + terms->mask.num_params + i] = terms->score.param[i].value;
}

static double read_array(void *user, const char *name, const int64_t *index, int rank) {
    const fk_walk *w = user;
    (void)rank; /* the declaration's */
    const int i = fk_array_list_find(&w->terms.arrays, name);
    return fk_array_element(&w->terms.arrays.decl[i], &w->a->array[i], w->a, index);
}

fk_expr_env fk_walker_environment(const fk_walker *t) {
    const fk_problem_terms *terms = &t->walk->terms;
    const size_t count = (size_t)(FK_VAR_PARAM + terms->mask.num_params + terms->score.num_params);
    const bool single = t->walk->eager && t->walk->p->dtype == FK_FP32;
    return (fk_expr_env){t->walk->names, t->values, count, read_array, (void *)t->walk, single};
}

/* Keys [*begin, *end) that the bounds of the mask leave to row q; the residual is tested key by key. */
static void visible_range(const fk_walker *t, const fk_expr_env *env, int64_t *begin, int64_t *end) {
    const fk_expr_split *split = &t->walk->terms.mask.split;
    double lo = 0, hi = (double)(t->sequence.seqlen_k - 1);
    for (int i = 0; i < split->num_upper; i++)
        hi = fmin(hi, floor(fk_expr_eval(split->upper[i], env)));
    for (int i = 0; i < split->num_lower; i++)
        lo = fmax(lo, ceil(fk_expr_eval(split->lower[i], env)));
    *begin = lo <= hi ? (int64_t)lo : 0;
    *end = lo <= hi ? (int64_t)hi + 1 : 0;
}

/* The score terms, each rounded where eager materialises it. */
static double apply_terms(fk_walker *t, const fk_expr_env *env, double s, double *ds) {
    const fk_walk *w = t->walk;
    const fk_problem_score *score = &w->terms.score;
    *ds = 1;
    for (int i = 0; i < score->num_terms; i++) {
        t->values[FK_VAR_S] = s;
        *ds *= fk_expr_eval(score->term[i].ds, env);
        s = fk_expr_eval(score->term[i].value, env);
        if (w->eager) s = (double)fk_walk_rounded(w->p, (float)s);
    }
    return s;
}

double fk_walker_score(const fk_walker *t, int64_t n) {
    const fk_walk *w = t->walk;
    const int d = w->p->head_dim;
    const float *k = t->k + n * d;
    const double scale = w->scale * t->score_descale;
    return w->eager ? (double)fk_walk_rounded(w->p, fk_dot_f32(t->q, k, d) * (float)scale)
                    : scale * fk_dot_f64(t->q, k, d);
}

/* Scores of keys [begin, end) into t->s, -inf where masked. Returns their maximum. */
static double row_scores(fk_walker *t, const fk_expr_env *env, int64_t begin, int64_t end) {
    const fk_expr *residual = t->walk->terms.mask.split.residual;
    double max = -INFINITY;
    for (int64_t n = begin; n < end; n++) {
        t->values[FK_VAR_K] = (double)n;
        if (residual && fk_expr_eval(residual, env) == 0) {
            t->s[n] = -INFINITY;
            continue;
        }
        t->s[n] = apply_terms(t, env, fk_walker_score(t, n), &t->ds[n]);
        max = t->s[n] > max || isnan(t->s[n]) ? t->s[n] : max;
    }
    return max;
}

/* Scores of the columns without keys; returns the maximum of `max` and them. */
static double row_sinks(const fk_walk *w, const fk_expr_env *env, double max, double sink[FK_MAX_SCORES]) {
    for (int i = 0; i < w->terms.score.num_sinks; i++) {
        sink[i] = fk_expr_eval(w->terms.score.sink[i].value, env);
        max = fmax(max, sink[i]);
    }
    return max;
}

/* Softmax of t->s in place, unnormalised if float64. Returns the sum. */
static double row_softmax(fk_walker *t, double max, const double *sink, int64_t begin, int64_t end) {
    const fk_walk *w = t->walk;
    double sum = 0;
    float sum32 = 0;
    for (int i = 0; i < w->terms.score.num_sinks; i++) {
        sum += exp(sink[i] - max);
        sum32 += expf((float)(sink[i] - max));
    }
    for (int64_t n = begin; n < end; n++) {
        t->s[n] = w->eager ? (double)expf((float)(t->s[n] - max)) : exp(t->s[n] - max);
        sum += t->s[n];
        sum32 += (float)t->s[n];
    }
    if (!w->eager) return sum;
    for (int64_t n = begin; n < end; n++) {
        const float p = (float)t->s[n];
        t->s[n] = w->p->dtype == FK_E4M3 ? fk_e4m3_to_float(fk_e4m3_from_float(p * 32)) / 32 / sum32
                                         : fk_walk_rounded(w->p, p / sum32);
    }
    return sum32;
}

fk_walk_row fk_walker_softmax(fk_walker *t, int64_t q) {
    const fk_walk *w = t->walk;
    const fk_expr_env env = fk_walker_environment(t);
    fk_walk_row row = {0, 0, -INFINITY, 0};
    const fk_sequence *s = &t->sequence;
    fk_walk_decode(w->p->dtype, w->a->q, w->a->q_stride, s->batch, s->q_first + q, t->h, w->p->head_dim, t->q);
    t->values[FK_VAR_Q] = (double)q;
    visible_range(t, &env, &row.begin, &row.end);
    double sink[FK_MAX_SCORES];
    row.max = row_sinks(w, &env, row_scores(t, &env, row.begin, row.end), sink);
    const bool empty = isinf(row.max) && row.max < 0;
    if (!empty) row.sum = row_softmax(t, row.max, sink, row.begin, row.end);
    return row;
}

double fk_walker_drop(const fk_walker *t, int64_t q, int64_t n, double x) {
    const fk_walk *w = t->walk;
    if (!w->p->dropout) return x;
    if (!fk_dropout_keep_byte(fk_dropout_byte(&t->dropout, (uint32_t)q, (uint32_t)n), w->dropped)) return 0;
    return w->eager ? (double)fk_walk_rounded(w->p, (float)x * w->dropout_scale) : x * (double)w->dropout_scale;
}

/* ---- threads ------------------------------------------------------------------------------------------ */

typedef struct job {
    fk_walk walk;
    void (*task)(fk_walker *, int64_t index, void *user);
    void *user;
    int64_t num_tasks, next; /* next: atomic */
    bool out_of_memory;      /* atomic */
} job;

static void *work(void *user) {
    job *j = user;
    const size_t keys = (size_t)j->walk.a->seqlen_k;
    fk_walker t = {.walk = &j->walk,
                   .kv_head = -1,
                   .k = malloc(keys * (size_t)j->walk.p->head_dim * sizeof(float)),
                   .v = malloc(keys * (size_t)j->walk.p->head_dim_v * sizeof(float)),
                   .s = malloc(keys * sizeof(double)),
                   .ds = malloc(keys * sizeof(double))};
    int64_t index = 0;
    t.out_of_memory = !t.k || !t.v || !t.s || !t.ds;
    while (!t.out_of_memory && (index = __atomic_fetch_add(&j->next, 1, __ATOMIC_RELAXED)) < j->num_tasks)
        j->task(&t, index, j->user);
    if (t.out_of_memory) __atomic_store_n(&j->out_of_memory, true, __ATOMIC_RELAXED);
    free(t.k);
    free(t.v);
    free(t.s);
    free(t.ds);
    return NULL;
}

static fk_status run_job(job *j, fk_error *err) {
    pthread_t thread[MAX_THREADS];
    long wanted = sysconf(_SC_NPROCESSORS_ONLN), started = 0;
    if (wanted > MAX_THREADS) wanted = MAX_THREADS;
    if (wanted > j->num_tasks) wanted = (long)j->num_tasks;
    while (started < wanted - 1 && pthread_create(&thread[started], NULL, work, j) == 0)
        started++;
    work(j);
    while (started > 0)
        pthread_join(thread[--started], NULL);
    return j->out_of_memory ? fk_fail(err, FK_NO_MEMORY, "no memory for the reference at seqlen_k %lld",
                                      (long long)j->walk.a->seqlen_k)
                            : FK_OK;
}

fk_status fk_walk_check(const fk_problem *p, const fk_args *a, fk_error *err) {
    fk_array_list arrays;
    fk_status status = fk_problem_list_arrays(p, &arrays, err);
    if (!status) status = fk_args_check(p, &arrays, a, false, NULL, err);
    if (!status) status = fk_splits_check(p, a, err);
    return status ? status : fk_sequences_check(p, a, err);
}

fk_status fk_walk_run(const fk_problem *p, const fk_args *a, bool eager, int64_t num_tasks,
                      void (*task)(fk_walker *, int64_t index, void *user), void *user, fk_error *err) {
    static const char *const fixed[FK_VAR_PARAM] = {"q", "k", "b", "h", "seqlen_q", "seqlen_k", "diag", "s"};
    fk_problem by_keys = *p;
    by_keys.op = FK_FORWARD;
    fk_expr_pool *pool = fk_expr_pool_create();
    if (!pool) return fk_fail(err, FK_NO_MEMORY, "no memory for the reference's mask");
    job j = {.walk = {.p = p, .a = a, .eager = eager, .scale = fk_args_scale(p, a)},
             .task = task,
             .user = user,
             .num_tasks = num_tasks};
    if (p->dropout) fk_dropout_threshold(a->dropout_p, &j.walk.dropped, NULL); /* has been checked */
    j.walk.dropout_scale = fk_dropout_scale(j.walk.dropped);
    const fk_problem_terms *terms = &j.walk.terms;
    fk_status status = fk_problem_terms_load(pool, &by_keys, NULL, &j.walk.terms, err);
    memcpy(j.walk.names, fixed, sizeof fixed);
    for (int i = 0; i < terms->mask.num_params && !status; i++)
        j.walk.names[FK_VAR_PARAM + i] = terms->mask.param[i].name;
    for (int i = 0; i < terms->score.num_params && !status; i++)
        j.walk.names[FK_VAR_PARAM + terms->mask.num_params + i] = terms->score.param[i].name;
    if (!status) status = run_job(&j, err);
    fk_expr_pool_destroy(pool);
    return status;
}

/* ---- forward ------------------------------------------------------------------------------------------ */

typedef struct outputs {
    double *o, *lse;
    int64_t tiles_per_head;
} outputs;

static void row_output(const fk_walker *t, int64_t q, const fk_walk_row *row, double *o) {
    const int dv = t->walk->p->head_dim_v;
    if (t->walk->eager) {
        float acc[FK_MAX_HEAD_DIM] = {0};
        for (int64_t n = row->begin; n < row->end; n++) {
            const float p = (float)fk_walker_drop(t, q, n, t->s[n]);
            for (int i = 0; i < dv; i++)
                acc[i] += p * t->v[n * dv + i];
        }
        const bool e4m3 = t->walk->p->dtype == FK_E4M3;
        for (int i = 0; i < dv; i++) {
            const float x = acc[i] * (float)t->value_descale;
            o[i] = e4m3 ? fk_bf16_to_float(fk_bf16_from_float(x)) : fk_walk_rounded(t->walk->p, x);
        }
        return;
    }
    double acc[FK_MAX_HEAD_DIM] = {0};
    for (int64_t n = row->begin; n < row->end; n++) {
        const double p = fk_walker_drop(t, q, n, t->s[n]);
        for (int i = 0; i < dv; i++)
            acc[i] += p * (double)t->v[n * dv + i];
    }
    for (int i = 0; i < dv; i++)
        o[i] = acc[i] * t->value_descale / row->sum;
}

static void forward_row(fk_walker *t, int64_t q, const outputs *out) {
    const fk_args *a = t->walk->a;
    const int dv = t->walk->p->head_dim_v;
    const int64_t index = fk_lse_row(t->walk->p, a, &t->sequence, t->h) + q;
    const fk_walk_row row = fk_walker_softmax(t, q);
    const bool empty = row.sum == 0;
    if (out->lse)
        out->lse[index] = empty            ? -INFINITY
                          : t->walk->eager ? (double)((float)row.max + logf((float)row.sum))
                                           : row.max + log(row.sum);
    if (!out->o) return;
    if (empty)
        memset(out->o + index * dv, 0, sizeof(double) * (size_t)dv);
    else
        row_output(t, q, &row, out->o + index * dv);
}

static void forward_task(fk_walker *t, int64_t index, void *user) {
    const outputs *out = user;
    const fk_args *a = t->walk->a;
    const int64_t head = index / out->tiles_per_head, first = index % out->tiles_per_head * ROWS_PER_TASK;
    fk_walker_enter(t, head / a->num_heads_q, head % a->num_heads_q);
    const int64_t end = t->sequence.seqlen_q, last = first + ROWS_PER_TASK < end ? first + ROWS_PER_TASK : end;
    for (int64_t q = first; q < last; q++)
        forward_row(t, q, out);
}

fk_status fk_reference(const fk_problem *problem, const fk_args *args, fk_reference_kind kind, double *o, double *lse) {
    fk_error err;
    fk_problem p;
    if (!problem || !args) return fk_refuse(FK_BAD_ARGUMENT, "%s is null", problem ? "args" : "problem");
    if (kind != FK_REFERENCE_F64 && kind != FK_REFERENCE_EAGER)
        return fk_refuse(FK_BAD_ARGUMENT, "kind is %d; it must be FK_REFERENCE_F64 (0) or FK_REFERENCE_EAGER (1)",
                         (int)kind);
    fk_status status = fk_problem_normalise(problem, &p, &err);
    p.op = FK_FORWARD; /* of a backward problem too */
    if (!status) status = fk_walk_check(&p, args, &err);
    if (!status) {
        outputs out = {o, lse, (args->seqlen_q + ROWS_PER_TASK - 1) / ROWS_PER_TASK};
        const int64_t num_tasks = out.tiles_per_head * args->batch * args->num_heads_q;
        status = fk_walk_run(&p, args, kind == FK_REFERENCE_EAGER, num_tasks, forward_task, &out, &err);
    }
    return status ? fk_report(&err) : FK_OK;
}
