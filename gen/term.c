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

/* In the order in which a word is looked for. */
static const fk_term_kind kinds[] = {FK_TERM_SCORE, FK_TERM_MASK, FK_TERM_PATTERN};
enum { NUM_KINDS = sizeof kinds / sizeof *kinds };

/* From kinds[i] on. Files of all kinds come first: packs are read by the first word that has none. */
static bool find_from(int i, const char *name, size_t length, fk_term_kind *out) {
    char path[TERM_PATH];
    for (int f = i; f < NUM_KINDS; ++f) {
        *out = kinds[f];
        if (!term_path(kinds[f], name, length, path)) return false;
        if (fk_template_exists(fk_template_dir(), path)) return true;
    }
    for (; i < NUM_KINDS; ++i) {
        *out = kinds[i];
        if (fk_term_recall(kinds[i], name, length, NULL)) return true;
    }
    return false;
}

bool fk_term_find(const char *name, size_t length, fk_term_kind *out) {
    return find_from(0, name, length, out);
}

fk_term_kind fk_mask_kind(const fk_mask *mask) {
    fk_term_kind kind;
    if (!mask->name[0]) return mask->num_values == 2 ? FK_TERM_PATTERN : FK_TERM_MASK;
    return find_from(1, mask->name, strlen(mask->name), &kind) ? kind : FK_TERM_MASK;
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
    const fk_term_kind *kind; /* those that are looked for */
    int num_kinds;
    const char *name;
    fk_term_file *out;
    int found; /* which of them has a file; -1: none */
} load_call;

static void load_body(lua_State *L, void *arg) {
    load_call *call = arg;
    char path[TERM_PATH];
    for (int i = 0; i < call->num_kinds && call->found < 0; ++i) {
        if (!term_path(call->kind[i], call->name, strlen(call->name), path) || !fk_lua_has_file(L, path)) continue;
        fk_term_file_read(L, call->kind[i], path, call->out);
        call->found = i;
    }
}

fk_status fk_term_lua_open(const char *template_dir, fk_lua **out, fk_error *err) {
    *out = NULL;
    return fk_lua_library(NULL) == FK_OK ? fk_lua_open(template_dir, NULL, out, err) : FK_OK;
}

fk_status fk_term_file_load(fk_lua *lua, fk_term_kind kind, const char *name, fk_term_file *out, fk_error *err) {
    fk_error missing;
    char text[512];
    load_call call = {&kind, 1, name, out, -1};
    const fk_status status = lua ? fk_lua_call(lua, load_body, &call, err) : FK_OK;
    if (status || call.found == 0 || fk_term_recall(kind, name, strlen(name), out)) return status;
    if (!lua && fk_lua_library(&missing) != FK_OK) {
        fk_term_missing(text, sizeof text);
        return fk_fail(err, missing.status, "%s %s is of no pack that is open%s%s; and %.1000s",
                       fk_term_kind_name(kind), name, *text ? ": " : "", text, missing.text);
    }
    fk_term_names(kind, text, sizeof text);
    return fk_fail(err, FK_BAD_PROBLEM, "unknown %s \"%s\"; known:%s", fk_term_kind_name(kind), name, text);
}

fk_status fk_term_agree(fk_lua *lua, const char *line, bool *is_file, fk_error *err) {
    char name[32], here[FK_TERM_TEXT];
    fk_term_kind kind;
    fk_term_file file;
    load_call call = {kinds, NUM_KINDS, name, &file, -1};
    fk_status status = fk_term_read(line, &kind, name, &file, err);
    if (!status && lua) status = fk_lua_call(lua, load_body, &call, err);
    *is_file = call.found >= 0;
    if (status) return status;
    if (!*is_file) return fk_term_agree_learnt(name, line, err);
    fk_term_write(kinds[call.found], name, &file, here);
    if (strcmp(here, line) == 0) return FK_OK;
    return fk_fail(err, FK_CHECK_FAILED, "\"%.500s\" is \"%.500s\" here, by templates/%s/%s.lua", line, here,
                   fk_term_kind_name(kinds[call.found]), name);
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
