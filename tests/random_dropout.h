/* Random dropout, and the keep mask of a kernel against its definition. */
#ifndef FK_TESTS_RANDOM_DROPOUT_H
#define FK_TESTS_RANDOM_DROPOUT_H

#include "random_draw.h"

/** Draws p, seed and offset; half of the time the kernel finds the latter two in memory: out->state. */
void draw_dropout(rng *r, drawn *out);
/** @return FK_CHECK_FAILED: the kernel's mask, computed with the device pointers of `args`, is not that of d->args;
 *          `complaint` then names an element */
fk_status check_keep_mask(fk_context *context, const fk_kernel *kernel, const fk_problem *problem, const drawn *d,
                          const fk_args *args, char *complaint, size_t size);

#endif
