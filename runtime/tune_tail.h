/* At the size that is timed no reference is at hand: there the ends of all results must agree between plans. */
#ifndef FK_RUNTIME_TUNE_TAIL_H
#define FK_RUNTIME_TUNE_TAIL_H

#include "tune_data.h"

typedef struct fk_tune_tail {
    float *first[FK_TUNE_PIECES]; /* what the first plan left; null: none was seen */
    bool seen;
} fk_tune_tail;

/** Fills the ends with NaN. */
fk_status fk_tune_tail_poison(const fk_tune_data *data, fk_error *err);
/** Compares the ends with the first plan's, or keeps them; `reason` says how they differ. */
fk_status fk_tune_tail_compare(const fk_tune_data *data, fk_tune_tail *tail, char reason[160], fk_error *err);
void fk_tune_tail_free(fk_tune_tail *tail);

#endif
