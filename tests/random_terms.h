/* Random score terms and masks that read arrays: their words, and data for whatever arrays a problem turns out to have.
 */
#ifndef FK_TESTS_RANDOM_TERMS_H
#define FK_TESTS_RANDOM_TERMS_H

#include "random_draw.h"

/** Of one array; dimensions that would make it larger are repeated, or summed over by its gradient. Many packed
 * sequences, whose longest ones alone are long, would else have a bias of a billion. */
#define MAX_ELEMENTS ((int64_t)1 << 24)

/** Appends to `spelling`. What belongs to the kernel comes from `kernel`, run-time values from `values`. */
void draw_scores(rng *kernel, rng *values, char *spelling);
void draw_pattern(rng *kernel, char *spelling);
void draw_array_masks(rng *kernel, rng *values, char *spelling);

/** Data, sizes and strides of one array; `*memory`, malloc'ed, has `*bytes`, and `out->data` lies in it. */
bool draw_array(rng *r, const fk_array_decl *decl, const fk_args *args, fk_array *out, void **memory, size_t *bytes);

#endif
