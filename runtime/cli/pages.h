/* Paged keys and values, for `run`: what was read or drawn row by row, cut into pages. */
#ifndef FK_CLI_PAGES_H
#define FK_CLI_PAGES_H

#include "tensors.h"

typedef struct pages {
    int32_t *table; /* host: [batch, pages of the longest sequence] */
    size_t bytes;
    void *device;
} pages;

/** Replaces k and v of `t` by pages of `page_size` rows in shuffled order. Rows behind the end of a sequence are NaN,
 * as are a few pages that nobody uses; the table's entries for pages that are not there are garbage. A problem that is
 * not paged is left alone. On failure nothing is held. */
cli_exit pages_cut(tensors *t, const fk_problem *problem, int64_t page_size, uint64_t seed, pages *out);
/** Copies the table to the device and points args->page_table there. */
fk_status pages_upload(pages *p, fk_context *context, fk_args *args);
void pages_free(pages *p, fk_context *context);

#endif
