/* From the masks of a problem to one predicate: files are read, params get names that are unique in the kernel, and
 * the terms are conjoined. Causal is no special case. */
#include "problem_mask.h"

#include "bind.h"
#include "embedded.h"

#include <stdio.h>
#include <string.h>

const fk_expr_symbol fk_mask_symbols[FK_MASK_NUM_SYMBOLS] = {
    {"q", FK_EXPR_INT, 0},        {"k", FK_EXPR_INT, 0},        {"b", FK_EXPR_INT, 0},    {"h", FK_EXPR_INT, 0},
    {"seqlen_q", FK_EXPR_INT, 0}, {"seqlen_k", FK_EXPR_INT, 0}, {"diag", FK_EXPR_INT, 0},
};

enum { MASK_PATH = 64 };
static const char folder[] = "templates/mask/";

/* False: no file has such a name. */
static bool mask_path(const char *name, size_t length, char out[MASK_PATH]) {
    if (length < 1 || length >= sizeof((fk_mask *)0)->name) return false;
    if (strspn(name, "abcdefghijklmnopqrstuvwxyz0123456789_") < length) return false;
    snprintf(out, MASK_PATH, "%s%.*s.lua", folder, (int)length, name);
    return true;
}

bool fk_mask_exists(const char *name, size_t length) {
    char path[MASK_PATH];
    return mask_path(name, length, path) && fk_template_exists(fk_template_dir(), path);
}

void fk_mask_names(char *out, size_t size) {
    const char *dir = fk_template_dir();
    size_t used = 0;
    out[0] = 0;
    for (const fk_embedded_file *file = fk_embedded; file->path && used < size; ++file) {
        if (strncmp(file->path, folder, sizeof folder - 1) != 0) continue;
        const char *name = file->path + sizeof folder - 1;
        used += (size_t)snprintf(out + used, size - used, " %.*s", (int)strcspn(name, "."), name);
    }
    if (dir && used < size) snprintf(out + used, size - used, ", and the files of %s/mask", dir);
}

typedef struct load_call {
    const char *name;
    fk_mask_file *out;
} load_call;

static void load_body(lua_State *L, void *arg) {
    const load_call *call = arg;
    char path[MASK_PATH];
    if (!mask_path(call->name, strlen(call->name), path) || !fk_lua_has_file(L, path)) {
        char known[512];
        fk_mask_names(known, sizeof known);
        fk_lua_raise(L, FK_BAD_PROBLEM, "unknown mask \"%s\"; known:%s", call->name, known);
    }
    fk_bind_read_mask(L, path, call->out);
}

fk_status fk_mask_file_load(fk_lua *lua, const char *name, fk_mask_file *out, fk_error *err) {
    load_call call = {name, out};
    return fk_lua_call(lua, load_body, &call, err);
}

fk_status fk_mask_parse(fk_expr_pool *pool, const char *text, const fk_mask_file *file, const fk_expr **out,
                        fk_error *err) {
    fk_expr_symbol symbols[FK_MASK_NUM_SYMBOLS + FK_MAX_MASK_VALUES];
    size_t count = FK_MASK_NUM_SYMBOLS;
    memcpy(symbols, fk_mask_symbols, sizeof fk_mask_symbols);
    for (int i = 0; file && i < file->num_params; ++i) {
        fk_expr_symbol *symbol = &symbols[count++];
        *symbol = (fk_expr_symbol){.type = FK_EXPR_INT};
        memcpy(symbol->name, file->param[i], sizeof symbol->name);
    }
    return fk_expr_parse_predicate(pool, text, symbols, count, "keep", out, err);
}

/* Renames the params of the mask'th term: left -> window0_left. */
static fk_status rename_params(fk_expr_pool *pool, const fk_mask *mask, int index, const fk_mask_file *file,
                               const fk_expr **keep, fk_problem_mask *out, fk_error *err) {
    for (int i = 0; i < file->num_params; ++i) {
        fk_mask_param *param = &out->param[out->num_params++];
        fk_expr_symbol symbol = {.type = FK_EXPR_INT};
        const int n = snprintf(symbol.name, sizeof symbol.name, "%s%d_%s", mask->name, index, file->param[i]);
        if (n < 0 || (size_t)n >= sizeof symbol.name) {
            return fk_fail(err, FK_TEMPLATE_ERROR, "mask %s: param %s: both names must be below %zu bytes together",
                           mask->name, file->param[i], sizeof symbol.name - 2);
        }
        memcpy(param->name, symbol.name, sizeof symbol.name);
        param->value = mask->value[i];
        const fk_expr *variable;
        const fk_status status = fk_expr_parse(pool, symbol.name, &symbol, 1, &variable, err);
        if (status != FK_OK) return status;
        *keep = fk_expr_substitute(pool, *keep, file->param[i], variable);
        if (!*keep) return fk_fail(err, FK_NO_MEMORY, "no memory for an expression");
    }
    return FK_OK;
}

static fk_status load_term(fk_expr_pool *pool, fk_lua *lua, const fk_mask *mask, int index, fk_problem_mask *out,
                           const fk_expr **keep, fk_error *err) {
    if (!mask->name[0]) return fk_mask_parse(pool, mask->expr, NULL, keep, err);
    fk_mask_file file;
    fk_status status = fk_mask_file_load(lua, mask->name, &file, err);
    if (status != FK_OK) return status;
    if (file.num_params != mask->num_values) { /* a template_dir whose file differs from the built-in one */
        return fk_fail(err, FK_TEMPLATE_ERROR, "templates/mask/%s.lua: has %d params: must have %d", mask->name,
                       file.num_params, mask->num_values);
    }
    fk_error inner;
    status = fk_mask_parse(pool, file.keep, &file, keep, &inner);
    if (status != FK_OK) {
        if (status == FK_BAD_PROBLEM) status = FK_TEMPLATE_ERROR;
        return fk_fail(err, status, "templates/mask/%s.lua: %.1900s", mask->name, inner.text);
    }
    return rename_params(pool, mask, index, &file, keep, out, err);
}

fk_status fk_problem_mask_load(fk_expr_pool *pool, const fk_problem *p, const char *template_dir, fk_problem_mask *out,
                               fk_error *err) {
    memset(out, 0, sizeof *out);
    fk_lua *lua = NULL;
    fk_status status = p->num_masks ? fk_lua_open(template_dir, NULL, &lua, err) : FK_OK;
    for (int i = 0; i < p->num_masks && status == FK_OK; ++i) {
        const fk_expr *keep = NULL;
        status = load_term(pool, lua, &p->mask[i], i, out, &keep, err);
        if (status != FK_OK) break;
        out->keep = fk_expr_and(pool, out->keep, keep);
        if (!out->keep) status = fk_fail(err, FK_NO_MEMORY, "no memory for an expression");
    }
    if (status == FK_OK && out->keep) status = fk_expr_split_bounds(pool, out->keep, "k", &out->split, err);
    fk_lua_close(lua);
    return status;
}
