/* The problem beyond its public face: what its masks mean. */
#ifndef FK_GEN_PROBLEM_H
#define FK_GEN_PROBLEM_H

#include "expr.h"

fk_status fk_problem_read(const char *spelling, fk_problem *out, fk_error *err);        /* fk_problem_parse */
fk_status fk_problem_write(const fk_problem *p, char *out, size_t size, fk_error *err); /* fk_problem_spell */
fk_status fk_problem_normalise(const fk_problem *in, fk_problem *out, fk_error *err);   /* fk_problem_canonical */

/** fk_problem_normalise that also says which mask was at fault (-1: none). */
fk_status fk_problem_check(const fk_problem *in, fk_problem *out, int *bad_mask, fk_error *err);
fk_status fk_problem_check_head_dim(const char *field, int64_t value, fk_error *err);

/* Run-time integers that a mask may read besides q, k, b (batch) and h (query head):
 * seqlen_q, seqlen_k, diag (seqlen_k - seqlen_q, or 0 when top-left), and its own params. */
typedef struct fk_mask_param {
    char name[48]; /* unique in the kernel: "window0_left" */
    int32_t value;
} fk_mask_param;

typedef struct fk_problem_mask {
    const fk_expr *keep; /* all terms conjoined, params renamed to unique names; NULL: every key is seen */
    fk_expr_split split; /* of keep */
    fk_mask_param param[FK_MAX_MASKS * FK_MAX_MASK_VALUES];
    int num_params;
} fk_problem_mask;

/** The spelling of a canonical problem with the names of run-time values in place of the values: one kernel serves all
 *  of them, so its text must not tell them apart. */
void fk_problem_write_generic(const fk_problem *p, const fk_problem_mask *mask, char out[FK_MAX_SPELLING]);

/** Loads the mask files and parses. `p` must be canonical. Allocates in `pool`. */
fk_status fk_problem_mask_load(fk_expr_pool *pool, const fk_problem *p, const char *template_dir, fk_problem_mask *out,
                               fk_error *err);

#endif
