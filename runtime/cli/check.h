/* The error of a result against float64, beside the error that an eager framework makes in the same dtype. */
#ifndef FK_CLI_CHECK_H
#define FK_CLI_CHECK_H

#include "grads.h"
#include "tensors.h"

#define CHECK_MAX_RATIO 2.0

typedef struct error_pair {
    double kernel, eager;
    double floor; /* what counts as no error */
} error_pair;

/* Of one result: O, or dQ, dK or dV, or the gradient of an array. */
typedef struct check_part {
    const char *name;
    error_pair max_abs;
    error_pair frobenius; /* |X - X64| / |X64| */
    double ratio;         /* the worse of both */
} check_part;

typedef struct check {
    check_part part[3 + FK_MAX_ARRAYS];
    int num_parts, worst; /* worst: the part of largest ratio */
    error_pair lse;       /* largest of |lse - lse64|; forward */
    int64_t wrong;        /* elements that are NaN or infinite where float64 is not, or the reverse */
    int64_t elements;     /* of all parts */
    int64_t skipped;      /* of these, NaN in float64, or of no sequence: not compared */
    double ratio;         /* the worst of kernel / max(eager, floor); infinite when wrong > 0 */
} check;

double check_ratio(const error_pair *e);
/** Whether there was anything to compare. */
static inline bool check_compares(const check *c) {
    return c->skipped < c->elements;
}
/** Runs both references on the CPU, in O(N^2) time. */
cli_exit check_result(const tensors *t, const fk_problem *problem, check *out);
/** Adds the gradients of arrays to what check_result found. `args`: the host's. */
cli_exit check_grads(const grads *g, const tensors *t, const fk_problem *problem, const fk_args *args, check *out);
void check_print(const check *c);

#endif
