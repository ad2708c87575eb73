/* The host side of `run`: inputs from files or drawn, results to files. Everything but lse is 16-bit in the problem's
 * dtype and contiguous in the layout asked for, so that args describes host and device alike but for the pointers. */
#ifndef FK_CLI_TENSORS_H
#define FK_CLI_TENSORS_H

#include "cli.h"
#include "npy.h"

/* Those from TENSOR_DOUT on: in the backward pass. */
typedef enum tensor {
    TENSOR_Q,
    TENSOR_K,
    TENSOR_V,
    TENSOR_O,
    TENSOR_LSE,
    TENSOR_DOUT,
    TENSOR_DQ,
    TENSOR_DK,
    TENSOR_DV,
    NUM_TENSORS
} tensor;

typedef struct tensors {
    fk_args args; /* host pointers */
    int layout;   /* fk_layout */
    int count;    /* TENSOR_DOUT, or NUM_TENSORS */
    void *data[NUM_TENSORS];
    size_t bytes[NUM_TENSORS];
} tensors;

/** Reads .npy files and checks them against the problem and each other; `path`: of Q, K, V and, for the backward pass,
 *  DOUT. `lengths`: what sequences_load has set; packed tensors have no batch axis. On failure the reason is on stderr
 * and nothing is held. */
cli_exit tensors_read(const char *const path[NUM_TENSORS], const fk_problem *problem, int layout,
                      const fk_args *lengths, tensors *out);
/** Draws from the standard normal distribution; shape: batch, heads_q, heads_kv, seqlen_q, seqlen_k[, seed]. The same
 *  values on every machine with the same libm. */
cli_exit tensors_draw(const option_ints *shape, const fk_problem *problem, int layout, const fk_args *lengths,
                      tensors *out);
/** `count` such values, rounded to a dtype. */
void tensors_draw_normal(uint64_t seed, int32_t dtype, void *out, size_t count);
void tensors_free(tensors *t);
/** What was read from `path` as malloc'ed elements of a dtype, <f4 rounded where it is another. */
cli_exit tensors_convert(const char *path, int32_t dtype, const npy_array *in, void **out);

/** Points args at `count` tensors. */
void tensors_point(fk_args *args, void *const data[NUM_TENSORS], int count);
/** Writes results (in the problem's dtype, or float32); null paths are skipped. All files appear, or none. */
cli_exit tensors_write(const tensors *t, const fk_problem *problem, const char *const path[NUM_TENSORS],
                       bool as_float32);

#endif
