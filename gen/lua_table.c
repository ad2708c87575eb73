#include "lua_table.h"
#include "lua_api.h"

#include <stdio.h>
#include <string.h>

/* Every error names the file and the field. */
_Noreturn void fk_table_fail(lua_State *L, const char *where, const char *field, const char *must) {
    const int type = lua_type(L, -1);
    if (type == LUA_TNIL)
        fk_lua_raise(L, FK_TEMPLATE_ERROR, "%s: field '%s' is missing: must be %s", where, field, must);
    fk_lua_raise(L, FK_TEMPLATE_ERROR, "%s: field '%s' is %s: must be %s", where, field,
                 type == LUA_TTABLE || type == LUA_TFUNCTION ? lua_typename(L, type) : luaL_tolstring(L, -1, NULL),
                 must);
}

int fk_table_int(lua_State *L, const char *where, const char *field, int low, int high) {
    lua_getfield(L, -1, field);
    int is_int;
    const lua_Integer value = lua_tointegerx(L, -1, &is_int);
    if (lua_type(L, -1) != LUA_TNUMBER || !is_int || value < low || value > high) {
        char must[64];
        snprintf(must, sizeof must, "an integer from %d to %d", low, high);
        fk_table_fail(L, where, field, must);
    }
    lua_pop(L, 1);
    return (int)value;
}

bool fk_table_bool(lua_State *L, const char *where, const char *field) {
    lua_getfield(L, -1, field);
    if (!lua_isboolean(L, -1)) fk_table_fail(L, where, field, "true or false");
    const bool value = lua_toboolean(L, -1);
    lua_pop(L, 1);
    return value;
}

void fk_table_text(lua_State *L, const char *where, const char *field, char *out, size_t size) {
    lua_getfield(L, -1, field);
    size_t length;
    const char *text = lua_type(L, -1) == LUA_TSTRING ? lua_tolstring(L, -1, &length) : NULL;
    if (!text || length == 0 || length >= size || strlen(text) != length) {
        char must[64];
        snprintf(must, sizeof must, "text of 1 to %zu bytes", size - 1);
        fk_table_fail(L, where, field, must);
    }
    memcpy(out, text, length + 1);
    lua_pop(L, 1);
}

/* The table on top has no fields but these (a list with a space before and behind each). */
void fk_table_check(lua_State *L, const char *where, const char *known) {
    luaL_checkstack(L, 8, where);
    lua_pushnil(L);
    while (lua_next(L, -2)) {
        lua_pop(L, 1);
        const char *key = lua_type(L, -1) == LUA_TSTRING ? lua_tostring(L, -1) : luaL_typename(L, -1);
        const char *wanted = lua_pushfstring(L, " %s ", key);
        if (!strstr(known, wanted))
            fk_lua_raise(L, FK_TEMPLATE_ERROR, "%s: unknown field '%s'; known:%s", where, key, known);
        lua_pop(L, 1);
    }
}

void fk_table_run(lua_State *L, const char *path) {
    fk_lua_run(L, path);
    if (!lua_istable(L, -1)) {
        fk_lua_raise(L, FK_TEMPLATE_ERROR, "%s: returns a %s: must return a table", path, luaL_typename(L, -1));
    }
}

void fk_table_set_int(lua_State *L, const char *field, int value) {
    lua_pushinteger(L, value);
    lua_setfield(L, -2, field);
}

void fk_table_set_bool(lua_State *L, const char *field, bool value) {
    lua_pushboolean(L, value);
    lua_setfield(L, -2, field);
}

void fk_table_set_text(lua_State *L, const char *field, const char *text) {
    lua_pushstring(L, text);
    lua_setfield(L, -2, field);
}
