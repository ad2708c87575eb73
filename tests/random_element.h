/* Elements of a problem's tensors, in their dtype. */
#ifndef FK_TESTS_RANDOM_ELEMENT_H
#define FK_TESTS_RANDOM_ELEMENT_H

#include "flashkiln.h"

#include <stdbool.h>

size_t element_bytes(fk_dtype dtype);
/** The address of element `at`. */
void *element_at(void *memory, fk_dtype dtype, int64_t at);
double element_get(const void *memory, fk_dtype dtype, int64_t at);
/** Rounds to nearest even; what is too large for e4m3 becomes 448. */
void element_set(void *memory, fk_dtype dtype, int64_t at, double value);
/** All bits 1: a NaN in every dtype. */
void element_poison(void *memory, fk_dtype dtype, int64_t at);
bool element_is_poison(const void *memory, fk_dtype dtype, int64_t at);
/** Of a problem's o, whose inputs have this dtype. */
fk_dtype output_dtype(fk_dtype dtype);
/** Half a unit in the last place of 1; of e4m3 that of a weight, which eager happens to round less where a few are all.
 * Of fp32 two units: a kernel rounds exponents, sums and lse where eager, in problems that are too small for it to
 * round, is exact (docs/precision.md). */
double element_half_ulp(fk_dtype dtype);

#endif
