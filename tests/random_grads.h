/* Gradients of declared arrays in a random trial: which are asked for, their memory, and their verdict. */
#ifndef FK_TESTS_RANDOM_GRADS_H
#define FK_TESTS_RANDOM_GRADS_H

#include "random_draw.h"

typedef struct grads {
    uint32_t bits; /* the problem's */
    size_t count;
    fk_array_decl decl[FK_MAX_ARRAYS];
    int64_t size[FK_MAX_ARRAYS][FK_MAX_RANK];   /* of the array; 1 beyond its rank */
    int64_t stride[FK_MAX_ARRAYS][FK_MAX_RANK]; /* of its gradient; 0 sums */
    int64_t offset[FK_MAX_ARRAYS], elements[FK_MAX_ARRAYS];
    float *host[FK_MAX_ARRAYS], *again[FK_MAX_ARRAYS]; /* whole allocations, padding included; again: of a second run */
    double *exact[FK_MAX_ARRAYS], *eager[FK_MAX_ARRAYS]; /* the same places */
    void *device[FK_MAX_ARRAYS];
} grads;

/** Appends grad=NAME words to a spelling of bwd, of arrays of floats that its scores read. */
void draw_grads(rng *kernel, char *spelling);

/** Draws strides and allocates on the host. args has the arrays. False: no memory. */
bool grads_allocate(rng *r, const fk_problem *problem, const fk_args *args, grads *out);
fk_status grads_upload(grads *g, fk_context *context);
/** Sets args->array_grad to the device's memory, or with `device` false to null pointers, of the same strides. */
void grads_point(const grads *g, bool device, fk_args *args);
fk_status grads_refer(grads *g, const fk_problem *problem, const fk_args *args);
fk_status grads_download(const grads *g, fk_context *context, bool again);
void grads_free(grads *g, fk_context *context);

/** The error against float64 over eager's, into `ratio` if it is larger. `lost`: what float32 loses where dS of one
 * pair cancels. False: `complaint` says what is wrong. */
bool grads_check(const grads *g, const fk_args *args, double lost, double *ratio, char *complaint, size_t size);
bool grads_equal_again(const grads *g, char *complaint, size_t size);

#endif
