#include "array.h"

#include "term.h"

#include <stdio.h>
#include <string.h>

/* In the order of fk_dim: as printed, as also read, and the variable that runs over it. */
static const struct {
    const char *name, *long_name;
} dims[] = {{"", ""}, {"b", "batch"}, {"h", "num_heads_q"}, {"q", "seqlen_q"}, {"k", "seqlen_k"}};
enum { NUM_DIMS = sizeof dims / sizeof dims[0] };

/* In the order of fk_element. */
static const char *const elements[] = {"float", "int", "fp16", "bf16"};
enum { NUM_ELEMENTS = sizeof elements / sizeof elements[0] };

const char *fk_array_element_name(const fk_array_decl *array) {
    return elements[array->type];
}

bool fk_is_identifier(const char *text) {
    static const char letters[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz_";
    if (!*text || !strchr(letters, *text)) return false;
    for (++text; *text; ++text) {
        if (!strchr(letters, *text) && (*text < '0' || *text > '9')) return false;
    }
    return true;
}

/* ---- types as text ---- */

static bool accept(const char **at, const char *word) {
    const size_t length = strlen(word);
    if (strncmp(*at, word, length) != 0) return false;
    *at += length;
    return true;
}

static bool accept_dim(const char **at, int32_t *out) {
    for (int dim = 0; dim < NUM_DIMS; ++dim) {
        for (int i = 0; i < 2; ++i) {
            const char *name = i ? dims[dim].long_name : dims[dim].name;
            const size_t length = strlen(name);
            if (strncmp(*at, name, length) != 0 || (*at)[length] != ']') continue;
            *at += length + 1;
            *out = dim;
            return true;
        }
    }
    return false;
}

const char *fk_array_read_type(const char *text, fk_array_decl *out, char message[160]) {
    const char *at = text;
    fk_array_decl a = {.type = 0};
    memcpy(a.name, out->name, sizeof a.name);
    while (a.type < NUM_ELEMENTS && !accept(&at, elements[a.type]))
        ++a.type;
    if (a.type == NUM_ELEMENTS)
        return snprintf(message, 160, "expected float[...], fp16[...], bf16[...] or int[...]"), NULL;
    while (accept(&at, "[")) {
        if (a.rank == FK_MAX_RANK) return snprintf(message, 160, "more than %d dimensions", FK_MAX_RANK), NULL;
        if (!accept_dim(&at, &a.dim[a.rank++]))
            return snprintf(message, 160, "a dimension is b, h, q, k or empty, such as float[h][k] or int[b][]"), NULL;
    }
    if (!a.rank) return snprintf(message, 160, "expected a dimension, such as [h]"), NULL;
    if (accept(&at, ":sorted")) a.sorted = 1;
    *out = a;
    return at;
}

void fk_array_write_type(const fk_array_decl *array, char out[FK_ARRAY_TYPE_SIZE]) {
    strcpy(out, fk_array_element_name(array));
    for (int i = 0; i < array->rank; ++i)
        strcat(strcat(strcat(out, "["), dims[array->dim[i]].name), "]");
    if (array->sorted) strcat(out, ":sorted");
}

/* ---- checks ---- */

/* Names that mean something in every expression, or in the emitted text: the last two are read of runs (expr_split.c).
 */
static bool is_reserved(const char *name) {
    static const char *const words[] = {"s", "p", "true", "false", "first_key", "last_key"};
    for (size_t i = 0; i < sizeof words / sizeof words[0]; ++i) {
        if (strcmp(name, words[i]) == 0) return true;
    }
    for (int i = 0; i < FK_MASK_NUM_SYMBOLS; ++i) {
        if (strcmp(name, fk_mask_symbols[i].name) == 0) return true;
    }
    return false;
}

fk_status fk_array_check(const fk_array_decl *in, fk_array_decl *out, fk_error *err) {
    memset(out, 0, sizeof *out);
    if (!memchr(in->name, 0, sizeof in->name) || !fk_is_identifier(in->name) || is_reserved(in->name)) {
        return fk_fail(err, FK_BAD_PROBLEM, "the name of an array is \"%.31s\": must be an identifier of its own",
                       in->name);
    }
    if (in->type < 0 || in->type >= NUM_ELEMENTS) {
        return fk_fail(err, FK_BAD_PROBLEM, "type of array %s is %d: must be 0 (float), 1 (int), 2 (fp16) or 3 (bf16)",
                       in->name, in->type);
    }
    if (in->rank < 1 || in->rank > FK_MAX_RANK) {
        return fk_fail(err, FK_BAD_PROBLEM, "rank of array %s is %d: must be from 1 to %d", in->name, in->rank,
                       FK_MAX_RANK);
    }
    for (int i = 0; i < in->rank; ++i) {
        if (in->dim[i] < 0 || in->dim[i] >= NUM_DIMS) {
            return fk_fail(err, FK_BAD_PROBLEM, "dim[%d] of array %s is %d: must be from 0 to %d", i, in->name,
                           in->dim[i], NUM_DIMS - 1);
        }
        out->dim[i] = in->dim[i];
    }
    if (in->sorted != 0 && (in->sorted != 1 || in->type != FK_INT32)) {
        return fk_fail(err, FK_BAD_PROBLEM, "sorted of array %s is %d: must be 0, or 1 for an int array", in->name,
                       in->sorted);
    }
    memcpy(out->name, in->name, strlen(in->name));
    out->type = in->type;
    out->rank = in->rank;
    out->sorted = in->sorted;
    return FK_OK;
}

int fk_array_list_find(const fk_array_list *list, const char *name) {
    for (int i = 0; i < list->count; ++i) {
        if (strcmp(list->decl[i].name, name) == 0) return i;
    }
    return -1;
}

fk_status fk_array_list_add(fk_array_list *list, const fk_array_decl *array, fk_error *err) {
    const int found = fk_array_list_find(list, array->name);
    if (found >= 0) {
        char have[FK_ARRAY_TYPE_SIZE], want[FK_ARRAY_TYPE_SIZE];
        if (memcmp(&list->decl[found], array, sizeof *array) == 0) return FK_OK;
        fk_array_write_type(&list->decl[found], have);
        fk_array_write_type(array, want);
        return fk_fail(err, FK_BAD_PROBLEM, "array %s is declared as %s and as %s: must be one array", array->name,
                       have, want);
    }
    if (list->count == FK_MAX_ARRAYS)
        return fk_fail(err, FK_BAD_PROBLEM, "array %s: more than %d arrays", array->name, FK_MAX_ARRAYS);
    list->decl[list->count++] = *array;
    return FK_OK;
}

fk_status fk_array_list_join(fk_array_list *list, const fk_array_decl *array, fk_error *err) {
    const int found = fk_array_list_find(list, array->name);
    if (found >= 0 && fk_array_element_bytes(&list->decl[found]) == 2) {
        fk_array_decl wide = list->decl[found];
        wide.type = FK_FLOAT32;
        if (memcmp(&wide, array, sizeof wide) == 0) return FK_OK;
    }
    return fk_array_list_add(list, array, err);
}

/* ---- reads ---- */

bool fk_array_list_reads(const fk_array_list *list, const fk_expr *e) {
    for (int i = 0; i < list->count; ++i) {
        if (fk_expr_uses(e, list->decl[i].name)) return true;
    }
    return false;
}

bool fk_array_list_reads_along(const fk_array_list *list, const fk_expr *e, int dim) {
    for (int i = 0; i < list->count; ++i) {
        if (!fk_expr_uses(e, list->decl[i].name)) continue;
        for (int d = 0; d < list->decl[i].rank; ++d) {
            if (list->decl[i].dim[d] == dim && !(list->clamp[i] >> d & 1)) return true;
        }
    }
    return false;
}

bool fk_array_list_reads_row(const fk_array_list *list, const fk_expr *e, int i, int dim) {
    const fk_array_decl *array = &list->decl[i];
    if (!e || !fk_expr_uses(e, array->name) || list->clamp[i] || array->dim[array->rank - 1] != dim) return false;
    for (int d = 0; d < array->rank - 1; ++d) {
        if (array->dim[d] != FK_DIM_BATCH && array->dim[d] != FK_DIM_HEADS_Q) return false;
    }
    return true;
}

void fk_array_list_note(fk_array_list *list, const fk_expr *e) {
    enum { MOST = 32 };
    const fk_expr *read[MOST];
    for (int i = 0; i < list->count; ++i) {
        const fk_array_decl *array = &list->decl[i];
        const size_t count = fk_expr_find_reads(e, array->name, read, MOST);
        for (int d = 0; d < array->rank; ++d) {
            bool inside = count <= MOST && array->dim[d] != FK_DIM_ANY;
            for (size_t j = 0; j < count && inside; ++j)
                inside = fk_expr_is_scalar(fk_expr_index(read[j], d), dims[array->dim[d]].name);
            if (!inside) list->clamp[i] |= 1u << d;
        }
    }
}
