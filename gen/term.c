#include "term.h"

#include "embedded.h"

#include <stdio.h>
#include <string.h>

const fk_expr_symbol fk_mask_symbols[FK_MASK_NUM_SYMBOLS] = {
    {"q", FK_EXPR_INT, 0},        {"k", FK_EXPR_INT, 0},        {"b", FK_EXPR_INT, 0},    {"h", FK_EXPR_INT, 0},
    {"seqlen_q", FK_EXPR_INT, 0}, {"seqlen_k", FK_EXPR_INT, 0}, {"diag", FK_EXPR_INT, 0},
};

const fk_expr_symbol fk_pattern_symbols[FK_PATTERN_NUM_SYMBOLS] = {
    {"i", FK_EXPR_INT, 0}, {"j", FK_EXPR_INT, 0},        {"b", FK_EXPR_INT, 0},
    {"h", FK_EXPR_INT, 0}, {"blocks_k", FK_EXPR_INT, 0},
};

const char *fk_term_kind_name(fk_term_kind kind) {
    return kind == FK_TERM_MASK ? "mask" : kind == FK_TERM_SCORE ? "score" : "pattern";
}

/* ---- files ---- */

enum { TERM_PATH = 64 };

/* False: no file has such a name. */
static bool term_path(fk_term_kind kind, const char *name, size_t length, char out[TERM_PATH]) {
    if (length < 1 || length >= sizeof((fk_mask *)0)->name) return false;
    if (strspn(name, "abcdefghijklmnopqrstuvwxyz0123456789_") < length) return false;
    snprintf(out, TERM_PATH, "templates/%s/%.*s.lua", fk_term_kind_name(kind), (int)length, name);
    return true;
}

bool fk_term_exists(fk_term_kind kind, const char *name, size_t length) {
    char path[TERM_PATH];
    if (!term_path(kind, name, length, path)) return false;
    return fk_template_exists(fk_template_dir(), path) || fk_term_recall(kind, name, length, NULL);
}

fk_term_kind fk_mask_kind(const fk_mask *mask) {
    if (!mask->name[0]) return mask->num_values == 2 ? FK_TERM_PATTERN : FK_TERM_MASK;
    const size_t length = strlen(mask->name);
    return !fk_term_exists(FK_TERM_MASK, mask->name, length) && fk_term_exists(FK_TERM_PATTERN, mask->name, length)
               ? FK_TERM_PATTERN
               : FK_TERM_MASK;
}

bool fk_term_takes(fk_term_kind kind, const fk_term_file *file, int num_values) {
    const int blocks = kind == FK_TERM_PATTERN ? 2 : 0; /* the rows and columns of one */
    int needed = file->num_params;
    while (needed > 0 && file->param[needed - 1].has_default)
        --needed;
    return num_values >= blocks + needed && num_values <= blocks + file->num_params;
}

void fk_term_names(fk_term_kind kind, char *out, size_t size) {
    char folder[TERM_PATH];
    const char *dir = fk_template_dir();
    const int length = snprintf(folder, sizeof folder, "templates/%s/", fk_term_kind_name(kind));
    size_t used = 0;
    out[0] = 0;
    for (const fk_embedded_file *file = fk_embedded; file->path && used < size; ++file) {
        if (strncmp(file->path, folder, (size_t)length) != 0) continue;
        const char *name = file->path + length;
        used += (size_t)snprintf(out + used, size - used, " %.*s", (int)strcspn(name, "."), name);
    }
    if (dir && used < size) snprintf(out + used, size - used, ", and the files of %s/%s", dir, fk_term_kind_name(kind));
}

typedef struct load_call {
    fk_term_kind kind;
    const char *name;
    fk_term_file *out;
} load_call;

static void load_body(lua_State *L, void *arg) {
    const load_call *call = arg;
    char path[TERM_PATH];
    if (!term_path(call->kind, call->name, strlen(call->name), path) || !fk_lua_has_file(L, path)) {
        char known[512];
        fk_term_names(call->kind, known, sizeof known);
        fk_lua_raise(L, FK_BAD_PROBLEM, "unknown %s \"%s\"; known:%s", fk_term_kind_name(call->kind), call->name,
                     known);
    }
    fk_term_file_read(L, call->kind, path, call->out);
}

fk_status fk_term_lua_open(const char *template_dir, fk_lua **out, fk_error *err) {
    *out = NULL;
    return fk_lua_library(NULL) == FK_OK ? fk_lua_open(template_dir, NULL, out, err) : FK_OK;
}

fk_status fk_term_file_load(fk_lua *lua, fk_term_kind kind, const char *name, fk_term_file *out, fk_error *err) {
    fk_error missing;
    if (!lua && fk_term_recall(kind, name, strlen(name), out)) return FK_OK;
    if (!lua && fk_lua_library(&missing) != FK_OK) {
        char packs[512];
        fk_term_missing(packs, sizeof packs);
        return fk_fail(err, missing.status, "%s %s is of no pack that is open%s%s; and %.1000s",
                       fk_term_kind_name(kind), name, *packs ? ": " : "", packs, missing.text);
    }
    load_call call = {kind, name, out};
    return fk_lua_call(lua, load_body, &call, err);
}

/* ---- expressions ---- */

enum { MAX_SYMBOLS = FK_MASK_NUM_SYMBOLS + 1 + FK_MAX_TERM_VALUES + FK_MAX_ARRAYS };

static size_t list_symbols(fk_term_kind kind, const fk_term_file *file, const fk_array_list *arrays,
                           fk_expr_symbol out[MAX_SYMBOLS]) {
    const bool is_pattern = kind == FK_TERM_PATTERN;
    size_t count = is_pattern ? FK_PATTERN_NUM_SYMBOLS : FK_MASK_NUM_SYMBOLS;
    memcpy(out, is_pattern ? fk_pattern_symbols : fk_mask_symbols, count * sizeof *out);
    if (kind == FK_TERM_SCORE && !(file && file->is_sink)) out[count++] = (fk_expr_symbol){"s", FK_EXPR_FLOAT, 0};
    for (int i = 0; file && i < file->num_params; ++i) {
        out[count] = (fk_expr_symbol){.type = file->param[i].is_float ? FK_EXPR_FLOAT : FK_EXPR_INT};
        memcpy(out[count++].name, file->param[i].name, sizeof out->name);
    }
    for (int i = 0; i < arrays->count; ++i) {
        const fk_array_decl *array = &arrays->decl[i];
        out[count] =
            (fk_expr_symbol){.type = fk_array_is_float(array) ? FK_EXPR_FLOAT : FK_EXPR_INT, .rank = array->rank};
        memcpy(out[count++].name, array->name, sizeof out->name);
    }
    return count;
}

fk_status fk_term_parse(fk_expr_pool *pool, fk_term_kind kind, const char *text, const fk_term_file *file,
                        const fk_array_list *arrays, const fk_expr **out, fk_error *err) {
    static const fk_expr_wanted keep = {"keep", FK_EXPR_BOOL, "k <= q"}, score = {"score", FK_EXPR_FLOAT, "s * 2"},
                                sink = {"sink", FK_EXPR_FLOAT, "sink[h]"}, block = {"block", FK_EXPR_BOOL, "i == j"};
    const bool is_sink = file && file->is_sink;
    fk_expr_symbol symbols[MAX_SYMBOLS];
    const size_t count = list_symbols(kind, file, arrays, symbols);
    const fk_status status = fk_expr_parse_as(pool, text, symbols, count,
                                              kind == FK_TERM_MASK      ? &keep
                                              : kind == FK_TERM_PATTERN ? &block
                                              : is_sink                 ? &sink
                                                                        : &score,
                                              out, err);
    if (status != FK_OK) return status;
    if (is_sink && (fk_expr_uses(*out, "q") || fk_expr_uses(*out, "k")))
        return fk_fail(err, FK_BAD_PROBLEM, "sink reads q or k: a sink is one column for all of them\n    %s", text);
    return FK_OK;
}
