/* Reading the tables that Lua files return, strictly: what is missing, of another type or not known is an error that
 * names file and field. `where` is the file, perhaps with a place in it; the table is on top of the stack. In bodies.
 */
#ifndef FK_GEN_LUA_TABLE_H
#define FK_GEN_LUA_TABLE_H

#include "lua_host.h"

#include <stdbool.h>

/** Runs a file that must return a table, and pushes it. */
void fk_table_run(lua_State *L, const char *path);
/** The table has no fields but these (a list with a space before and behind each). */
void fk_table_check(lua_State *L, const char *where, const char *known);
int fk_table_int(lua_State *L, const char *where, const char *field, int low, int high);
bool fk_table_bool(lua_State *L, const char *where, const char *field);
void fk_table_text(lua_State *L, const char *where, const char *field, char *out, size_t size);
/** Complains of `field`, whose value is on top. */
_Noreturn void fk_table_fail(lua_State *L, const char *where, const char *field, const char *must);

/* The other way: fields of the table on top. */
void fk_table_set_int(lua_State *L, const char *field, int value);
void fk_table_set_bool(lua_State *L, const char *field, bool value);
void fk_table_set_text(lua_State *L, const char *field, const char *text);

#endif
