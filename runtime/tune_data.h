/* Tensors to time and to check a kernel on: of any problem, of a given shape, drawn at random but the same each time.
 */
#ifndef FK_RUNTIME_TUNE_DATA_H
#define FK_RUNTIME_TUNE_DATA_H

#include "object.h"

enum { FK_TUNE_PIECES = 20 + 2 * FK_MAX_ARRAYS };

/* Memory that one pointer of fk_args points to. */
typedef struct fk_tune_piece {
    size_t field; /* of the pointer in fk_args */
    size_t bytes;
    void *host, *device; /* host: null unless it is kept */
    bool result;
} fk_tune_piece;

typedef struct fk_tune_data {
    fk_context *context;
    fk_problem problem; /* canonical */
    fk_args host, device;
    fk_tune_piece piece[FK_TUNE_PIECES];
    int num_pieces;
    bool keep; /* host copies too */
} fk_tune_data;

/** `shape`: without zeros. `keep`: results can be compared. On failure nothing is held. */
fk_status fk_tune_data_make(fk_context *context, const fk_problem *canonical, const fk_shape *shape, bool keep,
                            fk_tune_data *out, fk_error *err);
void fk_tune_data_free(fk_tune_data *data);

/** Fills the device's results with NaN, so that what a kernel leaves out shows. */
fk_status fk_tune_data_poison(fk_tune_data *data, fk_error *err);
/** Copies results into the host's. */
fk_status fk_tune_data_fetch(fk_tune_data *data, fk_error *err);
/** Runs `kernel` on the device's args, with a workspace of its own, to its end. */
fk_status fk_tune_data_run(fk_tune_data *data, const fk_kernel *kernel, fk_error *err);
/** Backward: runs the forward pass of the same problem for o and lse. */
fk_status fk_tune_data_forward(fk_tune_data *data, fk_error *err);

#endif
