/* Runs one random problem through the public API and compares it with float64. Demanded are:
 *   - the largest error of o (backward: of dq, dk and dv), and its relative Frobenius error, are at most twice those of
 *     an eager reference in the same dtype (or of rounding to that dtype, where eager is exact)
 *   - lse is right to 1e-3; rows that see no key give o = 0, lse = -inf and dq = 0
 *   - every element of a result is written (it holds NaN before) and nothing between, before or behind its rows is;
 *     padding of the inputs holds NaN, so that a read of it shows
 *   - a second run gives the same bits (every fourth problem; backward: every deterministic one) */
#ifndef FK_TESTS_RANDOM_TRIAL_H
#define FK_TESTS_RANDOM_TRIAL_H

#include "random_draw.h"

typedef struct verdict {
    double ratio;  /* error over eager's; 0 if it came to no comparison */
    bool compiled; /* the kernel was not in the store */
    bool spills;   /* it keeps registers in memory: slow, not wrong */
    char complaint[1024];
} verdict;

/** `kernels`: the context that the kernel comes from, which may have a plan of its own; `context` has the rest. */
bool random_trial(fk_context *context, fk_context *kernels, const drawn *d, verdict *out);

#endif
