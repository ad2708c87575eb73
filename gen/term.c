#include "term.h"

#include "embedded.h"

#include <stdio.h>
#include <string.h>

const fk_expr_symbol fk_mask_symbols[FK_MASK_NUM_SYMBOLS] = {
    {"q", FK_EXPR_INT, 0},        {"k", FK_EXPR_INT, 0},        {"b", FK_EXPR_INT, 0},    {"h", FK_EXPR_INT, 0},
    {"seqlen_q", FK_EXPR_INT, 0}, {"seqlen_k", FK_EXPR_INT, 0}, {"diag", FK_EXPR_INT, 0},
};

const char *fk_term_kind_name(fk_term_kind kind) {
    return kind == FK_TERM_MASK ? "mask" : "score";
}

/* ---- files ---- */

/* The name in an embedded file's path; null: it is no file of this kind. */
static const char *name_in(fk_term_kind kind, const char *path, size_t *length) {
    const char *prefix = kind == FK_TERM_MASK ? "templates/mask/" : "templates/score/";
    if (strncmp(path, prefix, strlen(prefix)) != 0) return NULL;
    *length = strcspn(path + strlen(prefix), ".");
    return path + strlen(prefix);
}

void fk_term_names(fk_term_kind kind, char *out, size_t size) {
    size_t used = 0, length;
    out[0] = 0;
    for (const fk_embedded_file *file = fk_embedded; file->path; ++file) {
        const char *name = name_in(kind, file->path, &length);
        if (!name) continue;
        if (used + length + 2 > size) return;
        out[used++] = ' ';
        memcpy(out + used, name, length);
        out[used += length] = 0;
    }
}

bool fk_term_exists(fk_term_kind kind, const char *name, size_t length) {
    size_t have_length;
    for (const fk_embedded_file *file = fk_embedded; file->path; ++file) {
        const char *have = name_in(kind, file->path, &have_length);
        if (have && have_length == length && memcmp(have, name, length) == 0) return true;
    }
    return false;
}

typedef struct load_call {
    fk_term_kind kind;
    const char *name;
    fk_term_file *out;
} load_call;

static void load_body(lua_State *L, void *arg) {
    const load_call *call = arg;
    char path[64];
    snprintf(path, sizeof path, "templates/%s/%s.lua", fk_term_kind_name(call->kind), call->name);
    if (strspn(call->name, "abcdefghijklmnopqrstuvwxyz0123456789_") != strlen(call->name) ||
        !fk_lua_has_file(L, path)) {
        char known[512];
        fk_term_names(call->kind, known, sizeof known);
        fk_lua_raise(L, FK_BAD_PROBLEM, "unknown %s \"%s\"; known:%s", fk_term_kind_name(call->kind), call->name,
                     known);
    }
    fk_term_file_read(L, call->kind, path, call->out);
}

fk_status fk_term_file_load(fk_lua *lua, fk_term_kind kind, const char *name, fk_term_file *out, fk_error *err) {
    load_call call = {kind, name, out};
    return fk_lua_call(lua, load_body, &call, err);
}

/* ---- expressions ---- */

enum { MAX_SYMBOLS = FK_MASK_NUM_SYMBOLS + 1 + FK_MAX_TERM_VALUES + FK_MAX_ARRAYS };

static size_t list_symbols(fk_term_kind kind, const fk_term_file *file, const fk_array_list *arrays,
                           fk_expr_symbol out[MAX_SYMBOLS]) {
    size_t count = FK_MASK_NUM_SYMBOLS;
    memcpy(out, fk_mask_symbols, sizeof fk_mask_symbols);
    if (kind == FK_TERM_SCORE && !(file && file->is_sink)) out[count++] = (fk_expr_symbol){"s", FK_EXPR_FLOAT, 0};
    for (int i = 0; file && i < file->num_params; ++i) {
        out[count] = (fk_expr_symbol){.type = file->param[i].is_float ? FK_EXPR_FLOAT : FK_EXPR_INT};
        memcpy(out[count++].name, file->param[i].name, sizeof out->name);
    }
    for (int i = 0; i < arrays->count; ++i) {
        const fk_array_decl *array = &arrays->decl[i];
        out[count] =
            (fk_expr_symbol){.type = array->type == FK_INT32 ? FK_EXPR_INT : FK_EXPR_FLOAT, .rank = array->rank};
        memcpy(out[count++].name, array->name, sizeof out->name);
    }
    return count;
}

fk_status fk_term_parse(fk_expr_pool *pool, fk_term_kind kind, const char *text, const fk_term_file *file,
                        const fk_array_list *arrays, const fk_expr **out, fk_error *err) {
    static const char *const types[] = {"an int", "a float", "a bool"};
    fk_expr_symbol symbols[MAX_SYMBOLS];
    const size_t count = list_symbols(kind, file, arrays, symbols);
    const fk_status status = fk_expr_parse(pool, text, symbols, count, out, err);
    if (status != FK_OK) return status;
    const fk_expr_type type = fk_expr_type_of(*out);
    const bool is_sink = file && file->is_sink;
    if (type != (kind == FK_TERM_MASK ? FK_EXPR_BOOL : FK_EXPR_FLOAT)) {
        return fk_fail(err, FK_BAD_PROBLEM, "%s is %s: must be %s\n    %s",
                       kind == FK_TERM_MASK ? "keep"
                       : is_sink            ? "sink"
                                            : "score",
                       types[type],
                       kind == FK_TERM_MASK ? "a bool, such as k <= q"
                       : is_sink            ? "a float, such as sink[h]"
                                            : "a float, such as s * 2",
                       text);
    }
    if (is_sink && (fk_expr_uses(*out, "q") || fk_expr_uses(*out, "k")))
        return fk_fail(err, FK_BAD_PROBLEM, "sink reads q or k: a sink is one column for all of them\n    %s", text);
    return FK_OK;
}
