/* The declared arrays of a problem, for `run`: from files named on the command line, or drawn. */
#ifndef FK_CLI_ARRAYS_H
#define FK_CLI_ARRAYS_H

#include "cli.h"

typedef struct arrays {
    size_t count;
    fk_array_decl decl[FK_MAX_ARRAYS];
    void *host[FK_MAX_ARRAYS], *device[FK_MAX_ARRAYS];
    int64_t elements[FK_MAX_ARRAYS];
    size_t bytes[FK_MAX_ARRAYS];
} arrays;

/** `given`: NAME=FILE.npy each, <f4 or <i4, <f2 or <f4 for fp16, <u2 (bits) or <f4 for bf16, with as many axes as
 * declared; an axis of 1 is repeated. With `draw`, arrays of floats that are not given are drawn from the standard
 * normal distribution. Sizes in args are set; sets args->array to the host's. On failure nothing is held. */
cli_exit arrays_load(const option_texts *given, const fk_problem *problem, bool draw, uint64_t seed, fk_args *args,
                     arrays *out);
/** Of NAME=FILE.npy, given by the option `name`: FILE.npy at the place of each array; the rest of `path` stays null. */
cli_exit arrays_paths(const arrays *a, const char *name, const option_texts *given, const char *path[FK_MAX_ARRAYS]);
/** Copies them to the device and points args->array there. */
fk_status arrays_upload(arrays *a, fk_context *context, fk_args *args);
void arrays_free(arrays *a, fk_context *context);

#endif
