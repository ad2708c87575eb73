/* Random sequences of different lengths in one tensor, and keys that are not used. */
#ifndef FK_TESTS_RANDOM_SEQUENCES_H
#define FK_TESTS_RANDOM_SEQUENCES_H

#include "random_draw.h"

/** Draws the lengths of a packed problem over sizes already drawn: batch, seqlens and totals change. `longest`: of a
 *  sequence; `budget`: products of query and key, times `dims`, over all heads. */
void draw_packed(rng *r, int64_t longest, int64_t budget, int64_t dims, drawn *out);
/** Draws how many keys of each sequence are used, some numbers outside its length. */
void draw_used(rng *r, drawn *out);

/** Whether row s of batch entry b of a tensor (of tensor's rows if packed: b is 0) belongs to some sequence, and, if
 *  `used`, is among its used keys. */
bool row_exists(const drawn *d, int tensor, int64_t b, int64_t s, bool used);

#endif
