/* The gradients of declared arrays, for `run`: asked for in the spelling by grad=NAME, of the shape that the array was
 * given in, written to files named on the command line. */
#ifndef FK_CLI_GRADS_H
#define FK_CLI_GRADS_H

#include "arrays.h"

typedef struct grads {
    size_t count; /* of the problem's arrays; those without a gradient have host null */
    const char *name[FK_MAX_ARRAYS], *path[FK_MAX_ARRAYS]; /* path: null if it is not written */
    float *host[FK_MAX_ARRAYS];
    void *device[FK_MAX_ARRAYS];
    int64_t shape[FK_MAX_ARRAYS][FK_MAX_RANK], elements[FK_MAX_ARRAYS];
    int rank[FK_MAX_ARRAYS];
} grads;

/** `given`: NAME=FILE.npy each. Sets args->array_grad to the host's; args has the arrays. `a` must outlive `out`. On
 * failure nothing is held. */
cli_exit grads_prepare(const option_texts *given, const fk_problem *problem, const arrays *a, fk_args *args,
                       grads *out);
fk_status grads_upload(grads *g, fk_context *context, fk_args *args);
fk_status grads_download(const grads *g, fk_context *context);
/** <f4 files. */
cli_exit grads_write(const grads *g);
void grads_free(grads *g, fk_context *context);

#endif
