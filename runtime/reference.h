/* Attention by the definition, row by row on the CPU: what the references of both passes walk with. */
#ifndef FK_RUNTIME_REFERENCE_H
#define FK_RUNTIME_REFERENCE_H

#include "dropout.h"
#include "object.h"

enum {
    FK_VAR_Q,
    FK_VAR_K,
    FK_VAR_B,
    FK_VAR_H,
    FK_VAR_SEQLEN_Q,
    FK_VAR_SEQLEN_K,
    FK_VAR_DIAG,
    FK_VAR_S,
    FK_VAR_PARAM, /* of the masks, then of the scores */
    FK_NUM_VARS = FK_VAR_PARAM + FK_MAX_MASK_SLOTS + FK_MAX_SCORE_SLOTS
};

/* What the threads share. */
typedef struct fk_walk {
    const fk_problem *p;
    const fk_args *a;
    bool eager; /* round where an eager framework materialises a tensor of the problem's dtype */
    double scale;
    int32_t dropped; /* of 256 weights; what is left is scaled */
    float dropout_scale;
    fk_problem_terms terms; /* the mask is split by k */
    const char *names[FK_NUM_VARS];
} fk_walk;

/* One thread's: K and V of the head at hand as floats (exact for both dtypes), and one row. */
typedef struct fk_walker {
    const fk_walk *walk;
    float *k, *v; /* [seqlen_k, head_dim], [seqlen_k, head_dim_v] */
    float q[FK_MAX_HEAD_DIM];
    double *s;       /* [seqlen_k]: scores, then probabilities, of [begin, end) */
    double *ds;      /* [seqlen_k]: derivatives of the score terms by the raw score */
    int64_t kv_head; /* batch x kv head that k and v hold; -1: none */
    int64_t b, h;
    double score_descale, value_descale; /* of h: 1 unless k and v are e4m3 */
    fk_sequence sequence;                /* b's */
    fk_dropout dropout;                  /* h's */
    double values[FK_NUM_VARS];
    bool out_of_memory; /* a task may set it: the walk then fails */
} fk_walker;

/* Keys outside [begin, end) are masked; within, masked ones have probability 0. */
typedef struct fk_walk_row {
    int64_t begin, end;
    double max, sum; /* of the scores, of exp(score - max), sinks included; sum 0: there are none */
} fk_walk_row;

/** Checks what the references read of `args`. */
fk_status fk_walk_check(const fk_problem *p, const fk_args *a, fk_error *err);
/** Runs task(walker, 0 .. num_tasks - 1, user) on all cores. */
fk_status fk_walk_run(const fk_problem *p, const fk_args *a, bool eager, int64_t num_tasks,
                      void (*task)(fk_walker *, int64_t index, void *user), void *user, fk_error *err);
/** Goes to query head h of batch entry b. */
void fk_walker_enter(fk_walker *walker, int64_t b, int64_t h);
/** What expressions see; values[] holds all variables but q, k and s. */
fk_expr_env fk_walker_environment(const fk_walker *walker);
/** softmax_scale * q.k of the row at hand. */
double fk_walker_score(const fk_walker *walker, int64_t n);
/** Softmax of row q into walker->s: times `sum` if float64, else rounded. */
fk_walk_row fk_walker_softmax(fk_walker *walker, int64_t q);

/** The weight x of key n in row q, or its gradient, after dropout: 0, or x scaled, and rounded if eager. */
double fk_walker_drop(const fk_walker *walker, int64_t q, int64_t n, double x);

/** Adds what the pair of the row at hand and key n, whose dS is ds before the score terms, gives to gradients of
 * arrays; null ones are left out. */
void fk_walker_add_pair(fk_walker *walker, int64_t n, double ds, double *const grad[FK_MAX_ARRAYS]);
/** The same of the sinks of a row that has a sum. */
void fk_walker_add_sinks(fk_walker *walker, const fk_walk_row *row, double delta, double *const grad[FK_MAX_ARRAYS]);

/** What the backward pass gives; each may be null. */
typedef struct fk_gradients {
    double *dq, *dk, *dv;
    double *const *grad; /* of arrays; zeros to add to */
} fk_gradients;
/** Checks `kind`; the rest has been checked. */
fk_status fk_reference_gradients(const fk_problem *canonical, const fk_args *args, fk_reference_kind kind,
                                 const fk_gradients *out);

/** `n` elements of a row as floats. */
void fk_walk_decode(int32_t dtype, const void *data, const int64_t stride[3], int64_t b, int64_t row, int64_t head,
                    int n, float *out);
float fk_walk_rounded(const fk_problem *p, float x);
double fk_dot_f64(const float *x, const float *y, int n); /* n is a multiple of 8 */
float fk_dot_f32(const float *x, const float *y, int n);

#endif
