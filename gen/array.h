/* Declarations of arrays, as spellings and Lua files write them: float[h], bf16[b][h][q][k], int[b][k]:sorted.
 * Dimensions are b (batch), h (num_heads_q), q (seqlen_q), k (seqlen_k), by either name, or empty: any size. */
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

/** Do expressions read its elements as floats? */
static inline bool fk_array_is_float(const fk_array_decl *array) {
    return array->type != FK_INT32;
}
/** Bytes of an element. */
static inline int fk_array_element_bytes(const fk_array_decl *array) {
    return array->type == FK_FLOAT16 || array->type == FK_BFLOAT16 ? 2 : 4;
}
/** The fk_dtype of its floats. */
static inline int32_t fk_array_dtype(const fk_array_decl *array) {
    return array->type == FK_FLOAT16 ? FK_FP16 : array->type == FK_BFLOAT16 ? FK_BF16 : FK_FP32;
}
/** As types spell it: "float", "int", "fp16" or "bf16" */
const char *fk_array_element_name(const fk_array_decl *array);

/** Reads a type into everything but the name. @return the end of what was read; NULL: `message` says why */
const char *fk_array_read_type(const char *text, fk_array_decl *out, char message[160]);
void fk_array_write_type(const fk_array_decl *array, char out[FK_ARRAY_TYPE_SIZE]);

/** Checks every field; `out` gets determined bytes. */
fk_status fk_array_check(const fk_array_decl *in, fk_array_decl *out, fk_error *err);
/** Adds a checked declaration, or finds the same one. Fails where one of its name says otherwise, or the list is full.
 */
fk_status fk_array_list_add(fk_array_list *list, const fk_array_decl *array, fk_error *err);
/** The same of a term's file: where it has floats, one of 16 bits that is there stays in their place. */
fk_status fk_array_list_join(fk_array_list *list, const fk_array_decl *array, fk_error *err);
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
