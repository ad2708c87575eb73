/* Declarations of arrays, as spellings and Lua files write them: float[h], int[b][k]:sorted. Dimensions are b (batch),
 * h (num_heads_q), q (seqlen_q), k (seqlen_k), by either name, or empty: any size. */
#ifndef FK_GEN_ARRAY_H
#define FK_GEN_ARRAY_H

#include "expr.h"

/** All arrays of a problem, in the order of fk_args.array. */
typedef struct fk_array_list {
    fk_array_decl decl[FK_MAX_ARRAYS];
    uint32_t clamp[FK_MAX_ARRAYS]; /* bit d: some index of dimension d may lie outside it */
    int count;
} fk_array_list;

#define FK_ARRAY_TYPE_SIZE 32 /* bytes of a written type, with its zero */

/** Reads a type into everything but the name. @return the end of what was read; NULL: `message` says why */
const char *fk_array_read_type(const char *text, fk_array_decl *out, char message[160]);
void fk_array_write_type(const fk_array_decl *array, char out[FK_ARRAY_TYPE_SIZE]);

/** Checks every field; `out` gets determined bytes. */
fk_status fk_array_check(const fk_array_decl *in, fk_array_decl *out, fk_error *err);
/** Adds a checked declaration, or finds the same one. Fails where one of its name says otherwise, or the list is full.
 */
fk_status fk_array_list_add(fk_array_list *list, const fk_array_decl *array, fk_error *err);
/** -1: no such array */
int fk_array_list_find(const fk_array_list *list, const char *name);

/** Notes in `clamp` which indices of e's reads may lie outside their dimensions: all but b, h, q and k along their own.
 *  (What reads an array keeps these four within the problem.) */
void fk_array_list_note(fk_array_list *list, const fk_expr *e);

/** Does e read any of them? */
bool fk_array_list_reads(const fk_array_list *list, const fk_expr *e);
/** Does e read one whose dimension `dim` (fk_dim) is not clamped, so that its variable must stay inside? */
bool fk_array_list_reads_along(const fk_array_list *list, const fk_expr *e, int dim);
/** Does e read array i by the variable of `dim` (fk_dim) in its last dimension, and by b and h alone in others? Then a
 *  tile's part of it is a row of elements, whatever e makes of them. */
bool fk_array_list_reads_row(const fk_array_list *list, const fk_expr *e, int i, int dim);

bool fk_is_identifier(const char *text);

#endif
