/* Lua files of terms: { params = { "left", { "cap", "float" }, { "slope", "float[h]" } }, keep = "..." }. A list, not a
 * table by name, because the order of params is that of a spelling's values. */
#include "lua_api.h"
#include "lua_table.h"
#include "term.h"

#include <stdio.h>
#include <string.h>

static bool is_symbol(fk_term_kind kind, const char *name) {
    const bool is_pattern = kind == FK_TERM_PATTERN;
    const fk_expr_symbol *symbols = is_pattern ? fk_pattern_symbols : fk_mask_symbols;
    for (int i = 0; i < (is_pattern ? FK_PATTERN_NUM_SYMBOLS : FK_MASK_NUM_SYMBOLS); ++i) {
        if (strcmp(symbols[i].name, name) == 0) return true;
    }
    return kind == FK_TERM_SCORE && strcmp(name, "s") == 0;
}

static void check_name(lua_State *L, fk_term_kind kind, const char *path, const fk_term_file *file, const char *name) {
    bool taken = is_symbol(kind, name);
    for (int i = 0; i < file->num_params; ++i)
        taken = taken || strcmp(file->param[i].name, name) == 0;
    for (int i = 0; i < file->num_arrays; ++i)
        taken = taken || strcmp(file->array[i].name, name) == 0;
    if (!fk_is_identifier(name) || taken) {
        fk_lua_raise(L, FK_TEMPLATE_ERROR, "%s: param '%s': must be %s", path, name,
                     taken ? "a new name" : "an identifier");
    }
}

/* The i'th string of the table on top, or "". Stays on the stack. */
static const char *push_text(lua_State *L, lua_Integer i) {
    lua_geti(L, -1, i);
    return lua_type(L, -1) == LUA_TSTRING ? lua_tostring(L, -1) : "";
}

static void add_array(lua_State *L, const char *path, const char *name, const char *type, fk_term_file *out) {
    char message[160];
    fk_error err;
    fk_array_decl array = {.rank = 0};
    if (out->num_arrays == FK_MAX_TERM_ARRAYS)
        fk_lua_raise(L, FK_TEMPLATE_ERROR, "%s: more than %d arrays", path, FK_MAX_TERM_ARRAYS);
    memcpy(array.name, name, strlen(name));
    const char *end = fk_array_read_type(type, &array, message);
    if (!end || *end)
        fk_lua_raise(L, FK_TEMPLATE_ERROR, "%s: param '%s': type \"%s\": %s", path, name, type,
                     end ? "text behind it" : message);
    if (fk_array_check(&array, &out->array[out->num_arrays], &err) != FK_OK)
        fk_lua_raise(L, FK_TEMPLATE_ERROR, "%s: %s", path, err.text);
    ++out->num_arrays;
}

int fk_term_max_params(fk_term_kind kind) {
    return kind == FK_TERM_MASK    ? FK_MAX_MASK_PARAMS
           : kind == FK_TERM_SCORE ? FK_MAX_SCORE_VALUES
                                   : FK_MAX_MASK_VALUES - 2; /* the rows and columns of a block */
}

static void add_scalar(lua_State *L, fk_term_kind kind, const char *path, const char *name, const char *type,
                       fk_term_file *out) {
    const bool is_float = strcmp(type, "float") == 0;
    if (is_float ? kind != FK_TERM_SCORE : strcmp(type, "int") != 0) {
        fk_lua_raise(L, FK_TEMPLATE_ERROR, "%s: param '%s': type \"%s\": must be %s", path, name, type,
                     kind != FK_TERM_SCORE ? "int, or an array's" : "int, float, or an array's");
    }
    const int most = fk_term_max_params(kind);
    if (out->num_params == most) fk_lua_raise(L, FK_TEMPLATE_ERROR, "%s: has more than %d scalar params", path, most);
    fk_term_param *param = &out->param[out->num_params++];
    memcpy(param->name, name, strlen(name));
    param->is_float = is_float;
    param->least = -FK_MAX_SEQLEN;
    param->most = FK_MAX_SEQLEN;
}

/* One end of a param's range, if it is there; it may not exclude the default. */
static void read_limit(lua_State *L, const char *path, int entry, int at, const fk_term_param *param, int32_t least,
                       int32_t most, int32_t *limit) {
    int is_integer = 0;
    if (lua_geti(L, entry, at) == LUA_TNIL) return;
    const lua_Integer value = lua_tointegerx(L, -1, &is_integer);
    if (!is_integer || value < least || value > most)
        fk_lua_raise(L, FK_TEMPLATE_ERROR, "%s: param '%s': its %s must be an integer from %d to %d", path, param->name,
                     at == 4 ? "limit" : "least value", least, most);
    *limit = (int32_t)value;
}

/* The third to the fifth of a pattern's entry or a mask's, if they are there: what a pattern's param is when a spelling
 * leaves it out, its largest value and its least. `entry`: where it is. */
static void read_range(lua_State *L, fk_term_kind kind, const char *path, int entry, fk_term_file *out) {
    fk_term_param *param = &out->param[out->num_params - 1];
    const bool before = out->num_params > 1 && param[-1].has_default;
    int is_integer = 0;
    param->has_default = lua_geti(L, entry, 3) != LUA_TNIL;
    const lua_Integer value = lua_tointegerx(L, -1, &is_integer);
    if (param->has_default && kind == FK_TERM_MASK)
        fk_lua_raise(L, FK_TEMPLATE_ERROR, "%s: param '%s': must have no default: a mask's are all given", path,
                     param->name);
    if (param->has_default && (!is_integer || value < -FK_MAX_SEQLEN || value > FK_MAX_SEQLEN))
        fk_lua_raise(L, FK_TEMPLATE_ERROR, "%s: param '%s': its default must be an integer from %d to %d", path,
                     param->name, -FK_MAX_SEQLEN, FK_MAX_SEQLEN);
    if (before && !param->has_default)
        fk_lua_raise(L, FK_TEMPLATE_ERROR, "%s: param '%s': needs a default, as the one before it has", path,
                     param->name);
    param->otherwise = (int32_t)value;
    read_limit(L, path, entry, 4, param, param->has_default ? param->otherwise : -FK_MAX_SEQLEN, FK_MAX_SEQLEN,
               &param->most);
    read_limit(L, path, entry, 5, param, -FK_MAX_SEQLEN, param->has_default ? param->otherwise : param->most,
               &param->least);
}

/* What the entry has besides would be passed over. `last`: how many of its list are looked at. */
static void check_entry(lua_State *L, const char *path, int entry, const char *name, int last, bool nonzero) {
    lua_pushnil(L);
    while (lua_next(L, entry)) {
        lua_pop(L, 1);
        int is_integer = 0;
        const lua_Integer at = lua_type(L, -1) == LUA_TNUMBER ? lua_tointegerx(L, -1, &is_integer) : 0;
        const bool word = nonzero && lua_type(L, -1) == LUA_TSTRING && strcmp(lua_tostring(L, -1), "nonzero") == 0;
        if (!word && !(is_integer && at >= 1 && at <= last))
            fk_lua_raise(L, FK_TEMPLATE_ERROR, "%s: param '%s': its entry has %s: must have at most %d values%s", path,
                         name, lua_type(L, -1) == LUA_TSTRING ? lua_tostring(L, -1) : "more", last,
                         nonzero ? ", and nonzero" : "");
    }
}

/* The entry on top: "name" of an int, { "name", "type" }, of a pattern { "name", "int", default, most, least }, of a
 * mask the same with nil for the default, or of a score { "name", "float", nonzero = true }. */
static void read_param(lua_State *L, fk_term_kind kind, const char *path, fk_term_file *out) {
    const char *name = lua_type(L, -1) == LUA_TSTRING ? lua_tostring(L, -1) : "", *type = "int";
    const int top = lua_gettop(L);
    if (lua_istable(L, -1)) {
        name = push_text(L, 1);
        lua_pushvalue(L, top);
        type = push_text(L, 2);
    }
    if (strlen(name) >= sizeof out->param[0].name) fk_table_fail(L, path, "params", "names below 32 bytes");
    check_name(L, kind, path, out, name);
    if (strchr(type, '['))
        add_array(L, path, name, type, out);
    else
        add_scalar(L, kind, path, name, type, out);
    const bool scalar = !strchr(type, '[');
    if (lua_istable(L, top))
        check_entry(L, path, top, name, scalar && kind != FK_TERM_SCORE ? 5 : 2, scalar && kind == FK_TERM_SCORE);
    else if (out->num_params > 1 && out->param[out->num_params - 2].has_default)
        fk_lua_raise(L, FK_TEMPLATE_ERROR, "%s: param '%s': needs a default, as the one before it has", path, name);
    if (kind != FK_TERM_SCORE && scalar && lua_istable(L, top)) read_range(L, kind, path, top, out);
    if (kind == FK_TERM_SCORE && scalar && lua_istable(L, top)) {
        const int found = lua_getfield(L, top, "nonzero");
        if (found != LUA_TNIL && found != LUA_TBOOLEAN)
            fk_lua_raise(L, FK_TEMPLATE_ERROR, "%s: param '%s': nonzero must be true or false", path, name);
        out->param[out->num_params - 1].nonzero = lua_toboolean(L, -1);
    }
    lua_settop(L, top);
}

void fk_term_file_read(lua_State *L, fk_term_kind kind, const char *path, fk_term_file *out) {
    memset(out, 0, sizeof *out);
    luaL_checkstack(L, 16, path);
    fk_table_run(L, path);
    if (kind == FK_TERM_MASK) {
        fk_table_check(L, path, " params keep by_q ");
        fk_table_text(L, path, "keep", out->expr, sizeof out->expr);
        const bool by_q = lua_getfield(L, -1, "by_q") != LUA_TNIL;
        lua_pop(L, 1);
        if (by_q) fk_table_text(L, path, "by_q", out->by_q, sizeof out->by_q);
    } else if (kind == FK_TERM_PATTERN) {
        fk_table_check(L, path, " params block top_left ");
        fk_table_text(L, path, "block", out->expr, sizeof out->expr);
        out->top_left = lua_getfield(L, -1, "top_left") != LUA_TNIL;
        lua_pop(L, 1);
        if (out->top_left) out->top_left = fk_table_bool(L, path, "top_left");
    } else {
        fk_table_check(L, path, " params score sink ");
        out->is_sink = lua_getfield(L, -1, "sink") != LUA_TNIL;
        lua_pop(L, 1);
        if (out->is_sink && lua_getfield(L, -1, "score") != LUA_TNIL)
            fk_table_fail(L, path, "score", "absent beside sink");
        if (out->is_sink) lua_pop(L, 1);
        fk_table_text(L, path, out->is_sink ? "sink" : "score", out->expr, sizeof out->expr);
    }
    if (lua_getfield(L, -1, "params") != LUA_TNIL) {
        if (!lua_istable(L, -1)) fk_table_fail(L, path, "params", "an array of names");
        const lua_Integer count = (lua_Integer)lua_rawlen(L, -1);
        for (lua_Integer i = 1; i <= count; ++i) {
            lua_geti(L, -1, i);
            read_param(L, kind, path, out);
            lua_pop(L, 1);
        }
        if (count == 0 && (lua_pushnil(L), lua_next(L, -2)))
            fk_lua_raise(L, FK_TEMPLATE_ERROR,
                         "%s: params is a table by name: must be a list, { { \"slope\", \"float[h]\" } }", path);
    }
    lua_pop(L, 2);
}
