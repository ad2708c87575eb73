/* Attention by the definition, on the CPU: what every kernel is measured against.
 *
 * Two kinds share one walk. F64 computes everything in float64. EAGER rounds where an eager framework materialises a
 * tensor of the problem's dtype: S once, after scaling; P after a float32 softmax; O after a float32 sum.
 * Threads take blocks of query rows of one head; rows do not depend on each other, so neither does the result. */
#include "object.h"

#include "emulator/half.h"

#include <math.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define ROWS_PER_TASK 64
#define MAX_THREADS 64

enum {
    VAR_Q,
    VAR_K,
    VAR_B,
    VAR_H,
    VAR_SEQLEN_Q,
    VAR_SEQLEN_K,
    VAR_DIAG,
    VAR_PARAM,
    NUM_VARS = VAR_PARAM + FK_MAX_MASK_SLOTS
};

typedef struct job {
    const fk_problem *p;
    const fk_args *a;
    const fk_problem_mask *mask;
    bool eager;
    double scale;
    double *o, *lse;
    int64_t tiles_per_head, num_tasks;
    int64_t next; /* task; atomic */
    const char *names[NUM_VARS];
    bool out_of_memory; /* atomic */
} job;

/* A thread's scratch: K and V of the head at hand as floats (exact for both dtypes), and one row. */
typedef struct scratch {
    float *k, *v; /* [seqlen_k, head_dim], [seqlen_k, head_dim_v] */
    float q[FK_MAX_HEAD_DIM];
    double *s;    /* [seqlen_k]: scores, then probabilities */
    int64_t head; /* batch x kv head that k and v hold; -1: none */
} scratch;

static float decode(const fk_problem *p, uint16_t h) {
    return p->dtype == FK_FP16 ? fk_fp16_to_float(h) : fk_bf16_to_float(h);
}

static float rounded(const fk_problem *p, float x) {
    return p->dtype == FK_FP16 ? fk_fp16_to_float(fk_fp16_from_float(x)) : fk_bf16_to_float(fk_bf16_from_float(x));
}

static const uint16_t *row_of(const void *data, const int64_t *stride, int64_t b, int64_t row, int64_t head) {
    return (const uint16_t *)data + b * stride[0] + row * stride[1] + head * stride[2];
}

static void load_head(const job *j, scratch *t, int64_t b, int64_t kv_head) {
    const fk_args *a = j->a;
    const int64_t head = b * a->num_heads_kv + kv_head, d = j->p->head_dim, dv = j->p->head_dim_v;
    if (t->head == head) return;
    t->head = head;
    for (int64_t n = 0; n < a->seqlen_k; n++) {
        const uint16_t *k = row_of(a->k, a->k_stride, b, n, kv_head), *v = row_of(a->v, a->v_stride, b, n, kv_head);
        for (int64_t i = 0; i < d; i++)
            t->k[n * d + i] = decode(j->p, k[i]);
        for (int64_t i = 0; i < dv; i++)
            t->v[n * dv + i] = decode(j->p, v[i]);
    }
}

/* ---- the mask ----------------------------------------------------------------------------------------- */

/* Keys [*begin, *end) that the bounds of the mask leave to row q; the residual is tested key by key. */
static void visible_range(const job *j, const fk_expr_env *env, int64_t *begin, int64_t *end) {
    const fk_expr_split *split = &j->mask->split;
    double lo = 0, hi = (double)(j->a->seqlen_k - 1);
    for (int i = 0; i < split->num_upper; i++)
        hi = fmin(hi, floor(fk_expr_eval(split->upper[i], env)));
    for (int i = 0; i < split->num_lower; i++)
        lo = fmax(lo, ceil(fk_expr_eval(split->lower[i], env)));
    *begin = lo <= hi ? (int64_t)lo : 0;
    *end = lo <= hi ? (int64_t)hi + 1 : 0;
}

static void set_variables(const job *j, double *values, int64_t b, int64_t h) {
    const fk_args *a = j->a;
    values[VAR_K] = 0;
    values[VAR_B] = (double)b;
    values[VAR_H] = (double)h;
    values[VAR_SEQLEN_Q] = (double)a->seqlen_q;
    values[VAR_SEQLEN_K] = (double)a->seqlen_k;
    values[VAR_DIAG] = j->p->align == FK_TOP_LEFT ? 0 : (double)(a->seqlen_k - a->seqlen_q);
    for (int i = 0; i < j->mask->num_params; i++)
        values[VAR_PARAM + i] = j->mask->param[i].value;
}

/* ---- one row ------------------------------------------------------------------------------------------ */

static double dot_f64(const float *x, const float *y, int n) { /* n is a multiple of 8; the lanes let it vectorise */
    double lane[8] = {0};
    for (int i = 0; i < n; i += 8)
        for (int l = 0; l < 8; l++)
            lane[l] += (double)x[i + l] * (double)y[i + l];
    return ((lane[0] + lane[1]) + (lane[2] + lane[3])) + ((lane[4] + lane[5]) + (lane[6] + lane[7]));
}

static float dot_f32(const float *x, const float *y, int n) {
    float lane[8] = {0};
    for (int i = 0; i < n; i += 8)
        for (int l = 0; l < 8; l++)
            lane[l] += x[i + l] * y[i + l];
    return ((lane[0] + lane[1]) + (lane[2] + lane[3])) + ((lane[4] + lane[5]) + (lane[6] + lane[7]));
}

/* Scores of keys [begin, end) into t->s, -inf where masked. Returns their maximum. */
static double row_scores(const job *j, scratch *t, const fk_expr_env *env, double *k_value, int64_t begin,
                         int64_t end) {
    const int d = j->p->head_dim;
    const fk_expr *residual = j->mask->split.residual;
    double max = -INFINITY;
    for (int64_t n = begin; n < end; n++) {
        *k_value = (double)n;
        if (residual && fk_expr_eval(residual, env) == 0) {
            t->s[n] = -INFINITY;
            continue;
        }
        const float *k = t->k + n * d;
        t->s[n] =
            j->eager ? (double)rounded(j->p, dot_f32(t->q, k, d) * (float)j->scale) : j->scale * dot_f64(t->q, k, d);
        max = t->s[n] > max || isnan(t->s[n]) ? t->s[n] : max;
    }
    return max;
}

/* Softmax of t->s in place, unnormalised if float64. Returns the sum. */
static double row_softmax(const job *j, scratch *t, double max, int64_t begin, int64_t end) {
    double sum = 0;
    float sum32 = 0;
    for (int64_t n = begin; n < end; n++) {
        t->s[n] = j->eager ? (double)expf((float)(t->s[n] - max)) : exp(t->s[n] - max);
        sum += t->s[n];
        sum32 += (float)t->s[n];
    }
    if (!j->eager) return sum;
    for (int64_t n = begin; n < end; n++)
        t->s[n] = rounded(j->p, (float)t->s[n] / sum32);
    return sum32;
}

static void row_output(const job *j, const scratch *t, double sum, int64_t begin, int64_t end, double *o) {
    const int dv = j->p->head_dim_v;
    if (j->eager) {
        float acc[FK_MAX_HEAD_DIM] = {0};
        for (int64_t n = begin; n < end; n++)
            for (int i = 0; i < dv; i++)
                acc[i] += (float)t->s[n] * t->v[n * dv + i];
        for (int i = 0; i < dv; i++)
            o[i] = rounded(j->p, acc[i]);
        return;
    }
    double acc[FK_MAX_HEAD_DIM] = {0};
    for (int64_t n = begin; n < end; n++)
        for (int i = 0; i < dv; i++)
            acc[i] += t->s[n] * (double)t->v[n * dv + i];
    for (int i = 0; i < dv; i++)
        o[i] = acc[i] / sum;
}

static void run_row(const job *j, scratch *t, const fk_expr_env *env, double *values, int64_t b, int64_t h, int64_t q) {
    const fk_args *a = j->a;
    const int d = j->p->head_dim, dv = j->p->head_dim_v;
    const int64_t row = (b * a->num_heads_q + h) * a->seqlen_q + q;
    const uint16_t *source = row_of(a->q, a->q_stride, b, q, h);
    int64_t begin, end;
    for (int i = 0; i < d; i++)
        t->q[i] = decode(j->p, source[i]);
    values[VAR_Q] = (double)q;
    visible_range(j, env, &begin, &end);
    const double max = row_scores(j, t, env, &values[VAR_K], begin, end);
    const bool empty = isinf(max) && max < 0;
    const double sum = empty ? 0 : row_softmax(j, t, max, begin, end);
    if (j->lse) j->lse[row] = empty ? -INFINITY : j->eager ? (double)((float)max + logf((float)sum)) : max + log(sum);
    if (!j->o) return;
    if (empty)
        memset(j->o + row * dv, 0, sizeof(double) * (size_t)dv);
    else
        row_output(j, t, sum, begin, end, j->o + row * dv);
}

/* ---- threads ------------------------------------------------------------------------------------------ */

static void *work(void *user) {
    job *j = user;
    const fk_args *a = j->a;
    const size_t keys = (size_t)a->seqlen_k;
    scratch t = {.head = -1,
                 .k = malloc(keys * (size_t)j->p->head_dim * sizeof(float)),
                 .v = malloc(keys * (size_t)j->p->head_dim_v * sizeof(float)),
                 .s = malloc(keys * sizeof(double))};
    double values[NUM_VARS] = {0};
    const fk_expr_env env = {j->names, values, (size_t)(VAR_PARAM + j->mask->num_params), NULL, NULL};
    int64_t task = 0;
    if (!t.k || !t.v || !t.s)
        __atomic_store_n(&j->out_of_memory, true, __ATOMIC_RELAXED);
    else
        while ((task = __atomic_fetch_add(&j->next, 1, __ATOMIC_RELAXED)) < j->num_tasks) {
            const int64_t head = task / j->tiles_per_head, first = task % j->tiles_per_head * ROWS_PER_TASK;
            const int64_t b = head / a->num_heads_q, h = head % a->num_heads_q;
            const int64_t last = first + ROWS_PER_TASK < a->seqlen_q ? first + ROWS_PER_TASK : a->seqlen_q;
            load_head(j, &t, b, h / (a->num_heads_q / a->num_heads_kv));
            set_variables(j, values, b, h);
            for (int64_t q = first; q < last; q++)
                run_row(j, &t, &env, values, b, h, q);
        }
    free(t.k);
    free(t.v);
    free(t.s);
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
    return j->out_of_memory
               ? fk_fail(err, FK_NO_MEMORY, "no memory for the reference at seqlen_k %lld", (long long)j->a->seqlen_k)
               : FK_OK;
}

static fk_status reference(const fk_problem *p, const fk_args *a, bool eager, double *o, double *lse, fk_error *err) {
    static const char *const fixed[VAR_PARAM] = {"q", "k", "b", "h", "seqlen_q", "seqlen_k", "diag"};
    fk_problem_mask mask;
    fk_expr_pool *pool = fk_expr_pool_create();
    if (!pool) return fk_fail(err, FK_NO_MEMORY, "no memory for the reference's mask");
    fk_status status = fk_problem_mask_load(pool, p, NULL, &mask, err);
    if (!status) {
        job j = {.p = p, .a = a, .mask = &mask, .eager = eager, .scale = fk_args_scale(p, a), .o = o, .lse = lse};
        j.tiles_per_head = (a->seqlen_q + ROWS_PER_TASK - 1) / ROWS_PER_TASK;
        j.num_tasks = j.tiles_per_head * a->batch * a->num_heads_q;
        memcpy(j.names, fixed, sizeof fixed);
        for (int i = 0; i < mask.num_params; i++)
            j.names[VAR_PARAM + i] = mask.param[i].name;
        status = run_job(&j, err);
    }
    fk_expr_pool_destroy(pool);
    return status;
}

fk_status fk_reference(const fk_problem *problem, const fk_args *args, fk_reference_kind kind, double *o, double *lse) {
    fk_error err;
    fk_problem p;
    if (!problem || !args) return fk_refuse(FK_BAD_ARGUMENT, "%s is null", problem ? "args" : "problem");
    if (kind != FK_REFERENCE_F64 && kind != FK_REFERENCE_EAGER)
        return fk_refuse(FK_BAD_ARGUMENT, "kind is %d; it must be FK_REFERENCE_F64 (0) or FK_REFERENCE_EAGER (1)",
                         (int)kind);
    fk_status status = fk_problem_normalise(problem, &p, &err);
    if (!status) status = fk_args_check(&p, args, false, &err);
    if (!status) status = reference(&p, args, kind == FK_REFERENCE_EAGER, o, lse, &err);
    return status ? fk_report(&err) : FK_OK;
}
