/* Lua files of terms: { params = { "left", { "cap", "float" }, { "slope", "float[h]" } }, keep = "..." }. A list, not a
 * table by name, because the order of params is that of a spelling's values. */
#include "lua_api.h"
#include "lua_table.h"
#include "term.h"

#include <stdio.h>
#include <string.h>

static bool is_symbol(fk_term_kind kind, const char *name) {
    for (int i = 0; i < FK_MASK_NUM_SYMBOLS; ++i) {
        if (strcmp(fk_mask_symbols[i].name, name) == 0) return true;
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

static void add_scalar(lua_State *L, fk_term_kind kind, const char *path, const char *name, const char *type,
                       fk_term_file *out) {
    const bool is_float = strcmp(type, "float") == 0;
    if (is_float ? kind == FK_TERM_MASK : strcmp(type, "int") != 0) {
        fk_lua_raise(L, FK_TEMPLATE_ERROR, "%s: param '%s': type \"%s\": must be %s", path, name, type,
                     kind == FK_TERM_MASK ? "int, or an array's" : "int, float, or an array's");
    }
    if (out->num_params == FK_MAX_TERM_VALUES)
        fk_lua_raise(L, FK_TEMPLATE_ERROR, "%s: has more than %d scalar params", path, FK_MAX_TERM_VALUES);
    fk_term_param *param = &out->param[out->num_params++];
    memcpy(param->name, name, strlen(name));
    param->is_float = is_float;
}

/* The entry on top: "name" of an int, or { "name", "type" }. */
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
    lua_settop(L, top);
}

void fk_term_file_read(lua_State *L, fk_term_kind kind, const char *path, fk_term_file *out) {
    memset(out, 0, sizeof *out);
    luaL_checkstack(L, 16, path);
    fk_table_run(L, path);
    if (kind == FK_TERM_MASK) {
        fk_table_check(L, path, " params keep ");
        fk_table_text(L, path, "keep", out->expr, sizeof out->expr);
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
