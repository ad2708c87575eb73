/* The host side of `run`: Q, K, V from files or drawn, O and lse to files. Everything is 16-bit in the problem's dtype
 * and contiguous in the layout asked for, so that args describes host and device alike but for the pointers. */
#ifndef FK_CLI_TENSORS_H
#define FK_CLI_TENSORS_H

#include "cli.h"

typedef struct tensors {
    fk_args args; /* host pointers */
    int layout;   /* fk_layout */
    size_t q_bytes, k_bytes, v_bytes, o_bytes, lse_bytes;
    uint16_t *q, *k, *v, *o;
    float *lse;
} tensors;

/** Reads three .npy files and checks them against the problem and each other. On failure the reason is on stderr and
 *  nothing is held. */
cli_exit tensors_read(const char *q_path, const char *k_path, const char *v_path, const fk_problem *problem, int layout,
                      tensors *out);
/** Draws from the standard normal distribution; shape: batch, heads_q, heads_kv, seqlen_q, seqlen_k[, seed]. The same
 *  values on every machine with the same libm. */
cli_exit tensors_draw(const option_ints *shape, const fk_problem *problem, int layout, tensors *out);
void tensors_draw_normal(uint64_t seed, float *out, int64_t count);
void tensors_free(tensors *t);

/** Writes O (in the problem's dtype, or float32) and lse; a null path is skipped. Both files appear, or neither. */
cli_exit tensors_write(const tensors *t, const fk_problem *problem, const char *o_path, const char *lse_path,
                       bool as_float32);

#endif
