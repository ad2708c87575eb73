/* Dropout of `run`: its numbers, and the keep mask. */
#ifndef FK_CLI_DROPOUT_H
#define FK_CLI_DROPOUT_H

#include "cli.h"

typedef struct dropout {
    double p;
    int64_t seed, offset;
    const char *keep_mask; /* file to write, or null */
} dropout;
/* Numbers below 0: not given. */
#define DROPOUT_INIT                                                                                                   \
    { -1, -1, -1, NULL }

/** Sets the fields of `args` that a problem with dropout has. */
void dropout_set(const dropout *d, const fk_problem *problem, fk_args *args);
/** Writes the kernel's keep mask, if that is asked for; `check`: after comparing it with the definition's. */
cli_exit dropout_write_mask(const dropout *d, fk_context *context, const fk_kernel *kernel, const fk_problem *problem,
                            const fk_args *args, bool check);

#endif
