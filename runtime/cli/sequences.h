/* The lengths of sequences, for `run`: packed offsets and used keys, given on the command line, in files, or drawn. */
#ifndef FK_CLI_SEQUENCES_H
#define FK_CLI_SEQUENCES_H

#include "cli.h"

enum { CU_SEQLENS_Q, CU_SEQLENS_K, SEQUSED_K, NUM_LENGTHS };

typedef struct sequences {
    int32_t *host[NUM_LENGTHS]; /* null: the problem has no such words */
    int64_t count[NUM_LENGTHS];
    void *device[NUM_LENGTHS];
} sequences;

/** `given`: "0,100,228" or FILE.npy of <i4, each; null: drawn, where `random` (as tensors_draw has it) is not null:
 * packed lengths are 0 to SQ and 0 to SK, the first sequence has all of them. Sets batch, seqlens, totals and pointers
 * of args, as far as the lengths tell. On failure the reason is on stderr and nothing is held. */
cli_exit sequences_load(const char *const given[NUM_LENGTHS], const fk_problem *problem, const option_ints *random,
                        fk_args *args, sequences *out);
/** Copies them to the device and points args there. */
fk_status sequences_upload(sequences *s, fk_context *context, fk_args *args);
void sequences_free(sequences *s, fk_context *context);

#endif
