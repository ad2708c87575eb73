/* A pattern is a predicate over blocks, and becomes a mask: its row i and column j are what a pair's query and key are
 * divided by the block's sizes. Those and the pattern's values are literals, so that compilers make shifts of them;
 * where tiles lie within blocks, i and j are single values and each tile is empty or full. */
#include "term.h"

#include <stdio.h>

/* e with `name` replaced by `position` / `size`. Positions are not negative. */
static fk_status replace(fk_expr_pool *pool, const char *name, const char *position, int32_t size, const fk_expr **e,
                         fk_error *err) {
    char text[64];
    if (size == 1)
        snprintf(text, sizeof text, "%s", position);
    else if ((size & (size - 1)) == 0)
        snprintf(text, sizeof text, "(%s) >> %d", position, __builtin_ctz((uint32_t)size));
    else
        snprintf(text, sizeof text, "(%s) / %d", position, size);
    const fk_expr *by;
    const fk_status status = fk_expr_parse(pool, text, fk_mask_symbols, FK_MASK_NUM_SYMBOLS, &by, err);
    if (status != FK_OK) return status;
    *e = fk_expr_substitute(pool, *e, name, by);
    return *e ? FK_OK : fk_expr_pool_check(pool, err);
}

fk_status fk_pattern_expand(fk_expr_pool *pool, const fk_mask *mask, const fk_term_file *file, bool top_left,
                            const fk_expr *block, const fk_expr **keep, fk_error *err) {
    const int32_t rows = mask->value[0], columns = mask->value[1];
    const bool from_first = top_left || (file && file->top_left);
    char past[32]; /* seqlen_k rounded up */
    snprintf(past, sizeof past, "seqlen_k + %d", columns - 1);
    fk_status status = FK_OK;
    *keep = block;
    for (int n = 0; file && n < file->num_params && status == FK_OK; ++n) {
        char value[16];
        snprintf(value, sizeof value, "%d", n + 2 < mask->num_values ? mask->value[n + 2] : file->param[n].otherwise);
        status = replace(pool, file->param[n].name, value, 1, keep, err);
    }
    if (status == FK_OK) status = replace(pool, "i", from_first ? "q" : "max(q + diag, 0)", rows, keep, err);
    if (status == FK_OK) status = replace(pool, "j", "k", columns, keep, err);
    if (status == FK_OK) status = replace(pool, "blocks_k", past, columns, keep, err);
    return status;
}
